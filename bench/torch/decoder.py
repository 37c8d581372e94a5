"""A decode step of a tensor-parallel Llama in plain torch, its random weights, and the same step in fp32 without ranks.

Every weight and every cache of a model follows from its place and name, so that each rank makes its shards, and the reference the
whole matrices, layer by layer. The rows of a smaller batch are the first rows of a larger one.
"""

import zlib
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

EPSILON = 1e-5


@dataclass(frozen=True)
class Shape:
    """A whole model's widths, its layers, the entries of its static cache, and its vocabulary; 0: without a head."""

    dim: int
    hidden: int
    heads: int
    kv_heads: int
    layers: int
    context: int
    vocabulary: int

    @property
    def width(self):
        return self.dim // self.heads

    def undivided(self, world):
        """What so many ranks cannot share, or ""."""
        parts = {
            "heads of keys and values": self.kv_heads,
            "intermediate size": self.hidden,
            "vocabulary": self.vocabulary,
        }
        return ", ".join(f"{name} {extent}" for name, extent in parts.items() if extent % world)


class Source:
    """Random tensors of a model, equal on all ranks. Products keep the scale of their input."""

    def __init__(self, shape, device, dtype):
        self.shape, self.device, self.dtype = shape, device, dtype

    def draw(self, what, *extents, scale=1.0):
        generator = torch.Generator(self.device).manual_seed(zlib.crc32(what.encode()))
        return torch.randn(*extents, generator=generator, device=self.device, dtype=self.dtype).mul_(scale)

    def inputs(self, batch, step):
        """The rows [batch, dim] of a step."""
        return torch.cat([self.draw(f"input {step} {row}", 1, self.shape.dim) for row in range(batch)])

    def cache(self, batch, layer):
        """Keys and values [batch, heads, context, width] of a layer, before a step."""
        extents = (1, self.shape.kv_heads, self.shape.context, self.shape.width)
        return [
            torch.cat([self.draw(f"{layer} {name} {row}", *extents) for row in range(batch)])
            for name in ("keys", "values")
        ]

    def norm(self, what):
        return 1 + self.draw(what, self.shape.dim, scale=0.1)

    def layer(self, layer):
        """{name: a whole matrix [out, in], or a norm's weight}."""
        s = self.shape
        extents = {
            "q": (s.heads * s.width, s.dim),
            "k": (s.kv_heads * s.width, s.dim),
            "v": (s.kv_heads * s.width, s.dim),
            "out": (s.dim, s.heads * s.width),
            "gate": (s.hidden, s.dim),
            "up": (s.hidden, s.dim),
            "down": (s.dim, s.hidden),
        }
        made = {name: self.draw(f"{layer} {name}", *of, scale=of[1] ** -0.5) for name, of in extents.items()}
        return made | {name: self.norm(f"{layer} {name}") for name in ("attention norm", "feed-forward norm")}

    def head(self):
        return self.draw("head", self.shape.vocabulary, self.shape.dim, scale=self.shape.dim**-0.5)


def angles(position, width):
    """Rotary angles [width / 2] in fp32 at a position, a tensor of one element."""
    half = width // 2
    return position.float() * 10000.0 ** (-torch.arange(half, device=position.device) / half)


def rotate(x, cos, sin):
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1)


class Layer(nn.Module):
    """A rank's shards of a layer: columns of q, k, v, gate and up, rows of out and down."""

    def __init__(self, source, layer, rank, world):
        super().__init__()
        whole, self.width = source.layer(layer), source.shape.width

        def columns(*names):
            return torch.cat([whole[name].chunk(world)[rank] for name in names])

        def rows(name):
            return whole[name].chunk(world, dim=1)[rank].contiguous()

        self.heads, self.kv_heads = source.shape.heads // world, source.shape.kv_heads // world
        for name, weight in (
            ("qkv", columns("q", "k", "v")),
            ("out", rows("out")),
            ("gate_up", columns("gate", "up")),
            ("down", rows("down")),
            ("attention_norm", whole["attention norm"]),
            ("feed_forward_norm", whole["feed-forward norm"]),
        ):
            self.register_buffer(name, weight)

    def attend(self, x, keys, values, position, rotation, mask):
        """[batch, dim] -> [batch, heads * width] of this rank. Writes the step's entry of the cache. The queries that share a
        head of keys are that head's rows."""
        q, k, v = (
            functional.linear(x, self.qkv)
            .unflatten(-1, (-1, self.width))
            .split((self.heads, self.kv_heads, self.kv_heads), dim=1)
        )
        q = rotate(q, *rotation).unflatten(1, (self.kv_heads, -1))
        keys.index_copy_(2, position, rotate(k, *rotation).unsqueeze(2))
        values.index_copy_(2, position, v.unsqueeze(2))
        return functional.scaled_dot_product_attention(q, keys, values, attn_mask=mask).flatten(1)


class Shards(nn.Module):
    """A rank's part of a model with its cache for the largest batch; the arms share it."""

    def __init__(self, source, batch, rank, world):
        super().__init__()
        self.shape, self.places = source.shape, None
        self.layers = nn.ModuleList(Layer(source, layer, rank, world) for layer in range(source.shape.layers))
        self.cache = [
            [whole.chunk(world, dim=1)[rank].contiguous() for whole in source.cache(batch, layer)]
            for layer in range(source.shape.layers)
        ]
        self.norm = source.norm("last norm")
        self.head = source.head().chunk(world)[rank].contiguous() if source.shape.vocabulary else None

    def keep(self, places):
        """Keeps these entries of the cache, for restore()."""
        self.places = places
        self.kept = [[one[:, :, places].clone() for one in pair] for pair in self.cache]

    def restore(self):
        """Puts back what steps have written, so that no step finds another's results."""
        for pair, kept in zip(self.cache, self.kept, strict=True):
            for one, before in zip(pair, kept, strict=True):
                one[:, :, self.places] = before


def added_and_normed(reduce):
    """The function behind each row-parallel product: (a, its weight, the residual, a norm's weight) -> (norm, new residual)."""

    def join(a, weight, residual, norm):
        residual = residual + reduce(functional.linear(a, weight))
        return functional.rms_norm(residual, norm.shape, norm, EPSILON), residual

    return join


class Decoder(nn.Module):
    """A step of `batch` sequences: their rows [batch, dim] and the position, a tensor of one element -> the last norm [batch, dim],
    or this rank's part of the logits. join: see added_and_normed(); copies: it writes the residual."""

    def __init__(self, shards, batch, join, copies=False):
        super().__init__()
        self.shards, self.join, self.copies = shards, join, copies
        self.cache = [[one[:batch] for one in pair] for pair in shards.cache]

    def forward(self, x, position):
        shards, shape = self.shards, self.shards.shape
        turned = angles(position, shape.width)
        rotation = turned.cos().to(x.dtype), turned.sin().to(x.dtype)
        hidden = torch.arange(shape.context, device=x.device) > position
        mask = torch.zeros(1, shape.context, device=x.device, dtype=x.dtype).masked_fill(hidden, float("-inf"))
        mask = mask.expand(shape.heads // shape.kv_heads, -1)
        residual = x.clone() if self.copies else x
        normed = functional.rms_norm(x, (shape.dim,), shards.layers[0].attention_norm, EPSILON)
        following = [layer.attention_norm for layer in list(shards.layers)[1:]] + [shards.norm]
        for layer, (keys, values), norm in zip(shards.layers, self.cache, following, strict=True):
            attended = layer.attend(normed, keys, values, position, rotation, mask)
            normed, residual = self.join(attended, layer.out, residual, layer.feed_forward_norm)
            gate, up = functional.linear(normed, layer.gate_up).chunk(2, dim=-1)
            normed, residual = self.join(functional.silu(gate) * up, layer.down, residual, norm)
        return normed if shards.head is None else functional.linear(normed, shards.head)


def _normed(x, weight):
    return x * (x.square().mean(-1, keepdim=True) + EPSILON).rsqrt() * weight.float()


def _turned(x, position):
    """Rotary positions as products of complex numbers."""
    a, b = x.chunk(2, dim=-1)
    turned = angles(position, x.shape[-1])
    product = torch.complex(a, b) * torch.polar(torch.ones_like(turned), turned)
    return torch.cat((product.real, product.imag), dim=-1)


def reference(source, steps):
    """The whole model's result in fp32 of each step (x, position), with the cache as it is before any step. The weights are the
    rounded ones. Written apart from Decoder, so that a mistake there is found."""
    shape, x = source.shape, [rows.float() for rows, _ in steps]
    for layer in range(shape.layers):
        w = {name: weight.float() for name, weight in source.layer(layer).items()}
        cache = [one.float() for one in source.cache(steps[0][0].shape[0], layer)]
        for i, (_, position) in enumerate(steps):
            entries = int(position)
            n = _normed(x[i], w["attention norm"])
            q, k, v = ((n @ w[name].t()).unflatten(-1, (-1, shape.width)) for name in "qkv")
            q, k = _turned(q, position), _turned(k, position)
            keys, values = (
                torch.cat((before[:, :, :entries], new.unsqueeze(2)), dim=2).repeat_interleave(
                    shape.heads // shape.kv_heads, dim=1
                )
                for before, new in zip(cache, (k, v), strict=True)
            )
            scores = torch.einsum("bhd,bhnd->bhn", q, keys) * shape.width**-0.5
            attended = torch.einsum("bhn,bhnd->bhd", scores.softmax(-1), values).flatten(1)
            x[i] = x[i] + attended @ w["out"].t()
            n = _normed(x[i], w["feed-forward norm"])
            x[i] = x[i] + (functional.silu(n @ w["gate"].t()) * (n @ w["up"].t())) @ w["down"].t()
    normed = [_normed(rows, source.norm("last norm")) for rows in x]
    return [rows @ source.head().float().t() for rows in normed] if shape.vocabulary else normed


def relative_error(got, want):
    """The Frobenius norm of the difference, relative to that of the fp32 result."""
    return ((got.float() - want).norm() / want.norm()).item()
