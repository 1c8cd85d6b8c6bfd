"""What only a CUDA device can show: that nothing waits for it. Never run where there is none."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import tbnum
from tests.loops import Half, batches

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def test_a_fused_loop_at_the_defaults_adds_no_sync_and_knows_its_skips(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Half().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0**10)
    data = [x.cuda() for x in batches(120, bad=[40])]
    with tbnum.wrap(optimizer, scaler, model=model, logdir=tmp_path) as monitor:
        try:
            for step, x in enumerate(data):
                torch.cuda.set_sync_debug_mode("error" if step > 1 else "default")  # the first steps initialize
                scaler.scale(model(x).square().mean()).backward()
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
        finally:
            torch.cuda.set_sync_debug_mode("default")
        monitor.flush()
        assert monitor.skipped_steps >= 1
    (run,) = tbnum.read(tmp_path).values()
    assert len(run.steps["step"]) == 120 and run.steps["skipped"][40]
    assert run.steps["grad_norm"][0] > 0 and run.steps["loss_scale"][0] == 2.0**10
