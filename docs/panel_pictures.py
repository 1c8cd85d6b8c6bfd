"""Makes the pictures of the panel in these pages, with a real TensorBoard and Chromium.

    python demo/pretrain.py --logdir LOGDIR/demo
    python docs/panel_pictures.py LOGDIR

The other runs are trained here, in some seconds: one in bfloat16 without a scaler, and two seeds of a third one. Needs
`pip install tbnum[test,docs]` and the front end (`make frontend`).
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlencode

import torch
from PIL import Image
from playwright.sync_api import Page, sync_playwright
from torch import nn

import tbnum

DOCS = Path(__file__).parent
SIZE = {"width": 1440, "height": 900}


def train(folder: Path, *, seed: int, steps: int, dtype: torch.dtype, spike: int | None = None) -> None:
    """A small regression; at step `spike` three batches are far too large."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 8))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**20, growth_interval=150) if dtype == torch.float16 else None
    target = torch.randn(32, 8, generator=torch.Generator().manual_seed(5))
    with tbnum.wrap(optimizer, scaler, model=model, logdir=folder, tensor_interval=25) as monitor:
        for step in range(steps):
            x = torch.randn(32, 32)
            y = x @ target + 0.3 * torch.randn(32, 8)
            if spike is not None and spike <= step < spike + 3:
                x = x * 300
            with torch.autocast("cpu", dtype=dtype):
                loss = ((model(x).float() - y) ** 2).mean()
            optimizer.zero_grad()
            if scaler is None:
                monitor.log_loss(loss)
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 3.0)
                optimizer.step()
                continue
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 3.0)
            scaler.step(optimizer)
            scaler.update()


@contextmanager
def tensorboard(logdir: Path) -> Iterator[str]:
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(logdir), "--host", "127.0.0.1", "--port", "0"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    assert process.stderr is not None
    try:
        for line in process.stderr:
            if found := re.search(r"http://127\.0\.0\.1:\d+/", line):
                yield found.group()
                return
        raise SystemExit("TensorBoard ended before it served")
    finally:
        process.terminate()
        process.wait()


def picture(page: Page, url: str, name: str, **place: str | list[str]) -> None:
    parts = [(f"p.tbnum.{key}", value) for key, value in place.items()]
    page.goto("about:blank")
    page.goto(f"{url}#tbnum&{urlencode(parts, doseq=True, safe='/')}")
    page.frame_locator("iframe").locator(".event-row, .events .nothing:not([hidden])").first.wait_for()
    page.frame_locator("iframe").locator(".runs .health").nth(3).wait_for()  # of each run
    page.wait_for_timeout(1500)  # the last line has been drawn
    page.screenshot(path=DOCS / name)
    with Image.open(DOCS / name) as taken:  # a third of the bytes
        few = taken.convert("RGB").quantize(128, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
    few.save(DOCS / name, optimize=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("logdir", type=Path)
    logdir = parser.parse_args().logdir
    if not (logdir / "bfloat16").is_dir():
        train(logdir / "bfloat16", seed=0, steps=1200, dtype=torch.bfloat16, spike=605)
        for seed in (1, 2):
            train(logdir / f"small/seed{seed}", seed=seed, steps=800, dtype=torch.float16)
    with tensorboard(logdir) as url, sync_playwright() as driver:
        executable = shutil.which("chromium-headless-shell") or shutil.which("chromium")
        chromium = driver.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        page = chromium.new_page(viewport=SIZE)
        picture(page, url, "panel.png", run="demo")
        picture(page, url, "panel-bfloat16.png", run="bfloat16", tensors="led", led="606")
        compared = {"over": ["small/seed2"], "base": "small/seed1", "against": "difference"}
        picture(page, url, "panel-baseline.png", run="small/seed1", **compared)
        chromium.close()


if __name__ == "__main__":
    main()
