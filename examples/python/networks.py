"""The networks of `train_resnet.py`: torchvision's ResNets, and a slim one for a processor."""

import math

import torch
from torch import nn

NAMES = ("slim", "resnet18", "resnet50")


class Block(nn.Module):
    """Two convolutions and a way around them."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(inplace=True),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.around: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            convolution = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.around = nn.Sequential(convolution, nn.BatchNorm2d(outputs))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return torch.relu_(self.body(images) + self.around(images))


def slim(classes: int, width: int = 16) -> nn.Module:
    """A ResNet of ten convolutions: 0.1 million weights, 14 million multiplications for 64 x 64 pixels."""
    return nn.Sequential(
        nn.Conv2d(3, width, 3, 2, 1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(inplace=True),
        Block(width, width, 1),
        Block(width, 2 * width, 2),
        Block(2 * width, 4 * width, 2),
        Block(4 * width, 8 * width, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8 * width, classes),
    )


def network(name: str, classes: int, device: torch.device) -> nn.Module:
    """A network with random weights on `device`, its convolutions in the layout of the images."""
    if name == "slim":
        model = slim(classes)
    else:
        from torchvision import models

        model = getattr(models, name)(num_classes=classes)
    return model.to(device=device, memory_format=torch.channels_last)


def learning_rate(step: int, steps: int, peak: float) -> float:
    """Rises over a tenth of the steps, then falls as a cosine."""
    rise = max(1, steps // 10)
    if step < rise:
        return peak * (step + 1) / rise
    return peak * 0.5 * (1 + math.cos(math.pi * (step - rise) / max(1, steps - rise)))
