"""Two ways to convolve images of many clients, each with its own kernels, and the faster one.

In lock step `torch.nn.functional.conv2d` becomes a convolution in groups, one a client, which is
slow on some accelerators. The same numbers come from a product of matrices, whose columns are the
patches of the images (im2col), in more memory. Which one is faster is measured for each layer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fedbench.core.devices import accelerated, finish
from fedbench.core.rng import Key
from fedbench.executors.cached_answers import machine, may_measure, store, stored
from fedbench.executors.cuda_graphs import CudaGraphs
from fedbench.models.network import Convolve, Network, Step

REVISION = 2  # of the forms: raised when one becomes faster, which voids old answers
MIN_SPEEDUP = 1.1  # how much faster matrices must be, because they take more memory
TURNS = 3


@dataclass(frozen=True)
class Geometry:
    """Shapes of a layer's convolution, for one client."""

    image: tuple[int, ...]  # channels, height and width of the input
    kernels: tuple[int, ...]  # outputs, channels, height and width
    stride: int = 1  # in both directions
    padding: int = 0  # on all sides

    @classmethod
    def of(cls, x: Tensor, weight: Tensor, stride: int, padding: int) -> Geometry:
        """Return the geometry of ``x (B, C, H, W)`` and ``weight (O, C, h, w)``."""
        return cls(tuple(x.shape[1:]), tuple(weight.shape), stride, padding)


@dataclass(frozen=True)
class ConvLoad:
    """Load of a convolution: how many images at once, and on what."""

    device: torch.device
    clients: int  # of a launch
    batch: int  # samples of each client
    half: bool = False  # whether products are in bfloat16
    replayed: bool = False  # whether launches are recorded as a graph, and cost Python nothing


class Patches(torch.autograd.Function):
    """Patches ``(C h w, B, L)`` of images ``(B, C, H, W)``: one copy for all images and clients.

    `torch.nn.functional.unfold` has them in another order, and on CUDA a kernel for each image.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, height: int, width: int, stride: int, padding: int) -> Tensor:
        padded = F.pad(x, (padding,) * 4)
        places = padded.unfold(2, height, stride).unfold(3, width, stride)
        return places.permute(1, 4, 5, 0, 2, 3).flatten(4).flatten(0, 2)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, height, width, ctx.stride, ctx.padding = inputs
        ctx.image = x.shape[2:]
        ctx.kernel = (height, width)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        columns = gradients[0].transpose(0, 1)
        images = F.fold(columns, ctx.image, ctx.kernel, stride=ctx.stride, padding=ctx.padding)
        return images, None, None, None, None


def matrices(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, stride: int = 1, padding: int = 0
) -> Tensor:
    """Compute a convolution as ``(O, C h w)`` times ``(C h w, B L)``, with L patches an image.

    References:
        Chellapilla, Puri and Simard, "High Performance Convolutional Neural Networks for Document
        Processing", IWFHR 2006, https://inria.hal.science/inria-00112631, "unrolling convolution".

    >>> x, weight = torch.arange(18.0).reshape(1, 2, 3, 3), torch.ones(1, 2, 2, 2)
    >>> matrices(x, weight).tolist()
    [[[[52.0, 60.0], [76.0, 84.0]]]]
    """
    patches: Tensor = Patches.apply(x, *weight.shape[2:], stride, padding)  # type: ignore[no-untyped-call]
    height, width = (
        (side + 2 * padding - kernel) // stride + 1
        for side, kernel in zip(x.shape[2:], weight.shape[2:], strict=True)
    )
    product = weight.flatten(1) @ patches.flatten(1)
    out = product.reshape(len(weight), len(x), height, width).transpose(0, 1)
    return out if bias is None else out + bias.to(out.dtype)[:, None, None]


FORMS: Mapping[str, Convolve] = {"groups": F.conv2d, "matrices": matrices}


@dataclass(frozen=True)
class Forms:
    """A convolution that uses the faster form of each layer."""

    multiplied: frozenset[Geometry] = frozenset()  # layers that are products of `matrices`

    def __call__(
        self,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: int = 1,
        padding: int = 0,
    ) -> Tensor:
        """Convolve as `torch.nn.functional.conv2d` does."""
        here = Geometry.of(x, weight, stride, padding)
        form = FORMS["matrices" if here in self.multiplied else "groups"]
        return form(x, weight, bias, stride=stride, padding=padding)


def geometries(network: Network) -> list[Geometry]:
    """Return the geometry of each layer of a network, in order, without repetition."""
    layers: dict[Geometry, None] = {}

    def note(
        x: Tensor, weight: Tensor, bias: Tensor | None = None, stride: int = 1, padding: int = 0
    ) -> Tensor:
        layers[Geometry.of(x, weight, stride, padding)] = None
        return F.conv2d(x, weight, bias, stride=stride, padding=padding)

    params = {name: torch.empty(shape, device="meta") for name, shape in network.shapes.items()}
    x = network.examples(1, Key(0)).to("meta")
    network.logits(params, x, Step(Key(0), torch.ones(1, device="meta").bool(), convolve=note))
    return list(layers)


def chosen(network: Network, load: ConvLoad) -> Forms:
    """Choose the faster form of every layer: groups on a CPU and with ``FEDBENCH_PROBE=off``."""
    if not accelerated(load.device) or not may_measure():
        return Forms()
    return measured(network, load)


def measured(network: Network, load: ConvLoad, forms: Mapping[str, Convolve] = FORMS) -> Forms:
    """Measure the faster form of every layer, or read what was measured before.

    Groups, which take less memory, where it runs out.
    """
    layers = geometries(network)
    size = f"{load.clients} clients, batch {load.batch}, {'bf16' if load.half else 'fp32'}"
    size += ", replayed" if load.replayed else ""
    question = f"{layers}; {size}; {machine(load.device)}, revision {REVISION}"

    def fits(text: str) -> bool:
        names = text.split()
        return len(names) == len(layers) and set(names) <= set(FORMS)

    answer = stored(question, fits)
    if answer is None:
        try:
            fastest = " ".join(
                faster(layer, load, forms, number == 0) for number, layer in enumerate(layers)
            )
        except torch.OutOfMemoryError:  # perhaps for a moment only, so this answer is not kept
            return Forms()
        answer = store(question, fastest, fits)
    names = zip(layers, answer.split(), strict=True)
    return Forms(frozenset(layer for layer, name in names if name == "matrices"))


def faster(
    layer: Geometry,
    load: ConvLoad,
    forms: Mapping[str, Convolve] = FORMS,
    first: bool = False,
) -> str:
    """Name the faster form: forward and backward, in turns, by the least time of each."""
    names = ("groups", "matrices")
    launches = [there_and_back(layer, load, forms[name], first) for name in names]
    ways = [replayed(launch, load.device) if load.replayed else launch for launch in launches]
    turns = [[_seconds(way, load.device) for way in ways] for _ in range(1 + TURNS)]
    groups, multiplied = (min(times) for times in zip(*turns[1:], strict=True))  # the first is cold
    return "matrices" if groups > MIN_SPEEDUP * multiplied else "groups"


def replayed(launch: Callable[[], object], device: torch.device) -> Callable[[], object]:
    """Record a launch as a graph, after one that warms up; return its replay."""
    launch()
    finish(device)

    def work() -> None:
        launch()  # its result goes, and with it memory that the next recording would lack

    return CudaGraphs()(work)


def there_and_back(
    layer: Geometry, load: ConvLoad, form: Convolve, first: bool = False
) -> Callable[[], Tensor]:
    """Make a launch of that layer alone, with random numbers, that returns a gradient.

    The ``first`` layer of a network has no gradient of its images.
    """
    device = load.device
    x = Key(0).uniform(load.clients, load.batch, *layer.image, device=device)
    weight = Key(1).uniform(load.clients, *layer.kernels, device=device)

    def energy(weight: Tensor, x: Tensor) -> Tensor:
        with torch.autocast(device.type, torch.bfloat16, load.half, False):
            y = form(x, weight, stride=layer.stride, padding=layer.padding)
        return y.square().sum()

    gradient = torch.vmap(torch.func.grad(energy, argnums=(0,) if first else (0, 1)))
    return lambda: gradient(weight, x)[0]


def _seconds(way: Callable[[], object], device: torch.device) -> float:
    """Return the seconds until the device has finished the work."""
    finish(device)
    start = time.perf_counter()
    way()
    finish(device)
    return time.perf_counter() - start
