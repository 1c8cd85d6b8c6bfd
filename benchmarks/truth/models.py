"""Three models, so small that a step takes a millisecond, and the data they learn from."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["BATCH", "CNN", "GPT", "LSTM", "MODELS", "Task", "make_task"]

BATCH = 16
VOCABULARY = 24
CONTEXT = 8
CLASSES = 8
IMAGE = 8


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.temperature = 1.0

    def forward(self, x: Tensor) -> Tensor:  # (B, T, C)
        batch, time, width = x.shape
        q, k, v = self.qkv(x).view(batch, time, 3, self.heads, -1).permute(2, 0, 3, 1, 4)  # each (B, nh, T, hs)
        scores = self.temperature * (q @ k.transpose(-1, -2)) / q.shape[-1] ** 0.5  # (B, nh, T, T)
        later = torch.ones(time, time, dtype=torch.bool).triu(1)
        weights = scores.masked_fill(later, float("-inf")).softmax(-1)
        return self.out((weights @ v).transpose(1, 2).reshape(batch, time, width))


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.down(torch.relu(self.up(self.norm2(x))))


class GPT(nn.Module):
    def __init__(self, width: int = 24, blocks: int = 1, heads: int = 2) -> None:
        super().__init__()
        self.token = nn.Embedding(VOCABULARY, width)
        self.position = nn.Parameter(0.1 * torch.randn(CONTEXT, width))
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(blocks))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCABULARY)

    def features(self, x: Tensor) -> Tensor:
        x = self.token(x) + self.position
        for block in self.blocks:
            x = block(x)
        return self.norm(x)

    def forward(self, x: Tensor) -> Tensor:  # (B, T) -> (B, T, V)
        return self.head(self.features(x))


class CNN(nn.Module):
    def __init__(self, width: int = 12) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(1, width, 3, padding=1), nn.BatchNorm2d(width)
        self.conv2, self.norm2 = nn.Conv2d(width, 2 * width, 3, stride=2, padding=1), nn.BatchNorm2d(2 * width)
        self.fc = nn.Linear(2 * width, 32)
        self.head = nn.Linear(32, CLASSES)

    def features(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm1(self.conv1(x)))
        x = torch.relu(self.norm2(self.conv2(x))).mean((2, 3))
        return torch.relu(self.fc(x))

    def forward(self, x: Tensor) -> Tensor:  # (B, 1, H, W) -> (B, classes)
        return self.head(self.features(x))


class LSTM(nn.Module):
    """Written out, so that it runs under CPU autocast in any type."""

    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.token = nn.Embedding(VOCABULARY, width)
        self.input = nn.Linear(width, 4 * width)
        self.recurrent = nn.Linear(width, 4 * width, bias=False)
        self.head = nn.Linear(width, VOCABULARY)

    def features(self, x: Tensor) -> Tensor:
        inputs = self.input(self.token(x))  # (B, T, 4C)
        hidden = cell = inputs.new_zeros(len(x), inputs.shape[-1] // 4)
        outputs = []
        for time in range(x.shape[1]):
            i, f, g, o = (inputs[:, time] + self.recurrent(hidden)).chunk(4, -1)
            cell = torch.sigmoid(f) * cell + torch.sigmoid(i) * torch.tanh(g)
            hidden = torch.sigmoid(o) * torch.tanh(cell)
            outputs.append(hidden)
        return torch.stack(outputs, 1)

    def forward(self, x: Tensor) -> Tensor:  # (B, T) -> (B, T, V)
        return self.head(self.features(x))


class Task:
    """Batches of a data set without end. Batch `index` is the same whenever it is asked for."""

    continuous = False

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def generator(self, index: int) -> torch.Generator:
        return torch.Generator().manual_seed(1_000_003 * (self.seed + 1) + index)

    def batch(self, index: int, size: int = BATCH) -> tuple[Tensor, Tensor]:
        raise NotImplementedError


class Sequences(Task):
    """A Markov chain: each token has three likely successors."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.likely = torch.randint(VOCABULARY, (VOCABULARY, 3), generator=self.generator(-1))

    def batch(self, index: int, size: int = BATCH) -> tuple[Tensor, Tensor]:
        generator = self.generator(index)
        tokens = [torch.randint(VOCABULARY, (size,), generator=generator)]
        for _ in range(CONTEXT):
            tokens.append(self.likely[tokens[-1], torch.randint(3, (size,), generator=generator)])
        chain = torch.stack(tokens, 1)
        return chain[:, :-1], chain[:, 1:]


class Images(Task):
    """A pattern a class, under noise that leaves some of them in doubt."""

    continuous = True

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.patterns = torch.randn(CLASSES, 1, IMAGE, IMAGE, generator=self.generator(-1))

    def batch(self, index: int, size: int = BATCH) -> tuple[Tensor, Tensor]:
        generator = self.generator(index)
        classes = torch.randint(CLASSES, (size,), generator=generator)
        return self.patterns[classes] + 1.5 * torch.randn(size, 1, IMAGE, IMAGE, generator=generator), classes


MODELS: dict[str, tuple[type[nn.Module], type[Task]]] = {
    "gpt": (GPT, Sequences),
    "cnn": (CNN, Images),
    "lstm": (LSTM, Sequences),
}


def make_task(model: str, seed: int) -> tuple[nn.Module, Task]:
    made, task = MODELS[model]
    return made(), task(seed)


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Of each prediction, (N,), in float32."""
    return F.cross_entropy(outputs.float().flatten(0, -2), targets.flatten(), reduction="none")
