"""A plain ResNet-50 (He et al. 2015, https://arxiv.org/abs/1512.03385; the stride in the 3 x 3 convolution)."""

from __future__ import annotations

import torch
from torch import nn


def _convolution(inside: int, outside: int, size: int, stride: int = 1) -> nn.Sequential:
    layer = nn.Conv2d(inside, outside, size, stride, size // 2, bias=False)
    return nn.Sequential(layer, nn.BatchNorm2d(outside))


class Bottleneck(nn.Module):
    """1 x 1, 3 x 3, 1 x 1, and around them."""

    def __init__(self, inside: int, width: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            _convolution(inside, width, 1),
            nn.ReLU(inplace=True),
            _convolution(width, width, 3, stride),
            nn.ReLU(inplace=True),
            _convolution(width, 4 * width, 1),
        )
        same = stride == 1 and inside == 4 * width
        self.around = nn.Identity() if same else _convolution(inside, 4 * width, 1, stride)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.body(images) + self.around(images))


def resnet50(classes: int = 1000) -> nn.Sequential:
    """Returns the model: images (N, 3, 224, 224) to logits (N, classes); 25,557,032 parameters at 1,000 classes."""
    layers: list[nn.Module] = [_convolution(3, 64, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    inside = 64
    for stage, blocks in enumerate((3, 4, 6, 3)):
        width = 64 << stage
        for block in range(blocks):
            layers.append(Bottleneck(inside, width, 2 if stage and not block else 1))
            inside = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inside, classes))
