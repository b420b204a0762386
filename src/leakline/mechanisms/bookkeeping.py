"""Bookkeeping: one ordinary forward and backward pass that notes what each layer took in and what came back.

Weights ask for no gradient during the pass, so autograd forms none of its own; what they would have been is worked
out from the books, layer by layer, as soon as a layer's last use has come back. What is noted is then let go.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from leakline.errors import StackError
from leakline.mechanisms.layer_gradients import Share, Use, rule_for


def owners(model: nn.Module) -> list[nn.Module]:
    """The layers that hold trained parameters of their own."""
    return [m for m in model.modules() if any(p.requires_grad for p in m.parameters(recurse=False))]


def shares_of(
    model: nn.Module, loss: Callable[[Tensor, Tensor], Tensor], x: Tensor, y: Tensor
) -> tuple[list[tuple[nn.Module, Share]], Tensor] | None:
    """Every layer's share in the examples' gradients, and the loss; None if a use's gradient never came back.

    The loss is a mean: an example's own gradient is len(x) times what comes back to it.
    """
    root = torch.zeros((), requires_grad=True)
    with _books(model, root) as books:
        value = loss(model(x), y)
        value.backward(torch.full_like(value, len(x)))  # type: ignore[no-untyped-call]
    shares = [(book.layer, book.share) for book in books if book.share is not None]
    return (shares, value.detach()) if len(shares) == len(books) else None


class _Tap(torch.autograd.Function):
    """The identity, which hands the gradient that comes back to a function. ``root`` makes it part of a graph."""

    @staticmethod
    def forward(ctx: Any, output: Tensor, root: Tensor, take: Callable[[Tensor], None]) -> Tensor:
        ctx.take = take
        ctx.mark_dirty(output)  # handed on as it is, so that it may be written over (x += skip)
        return output

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, None, None]:
        ctx.take(grads[0])
        return None, None, None


def _tap(output: Tensor, root: Tensor, take: Callable[[Tensor], None]) -> Tensor:
    """Have the gradient of a layer's output handed to a function."""
    if output._is_view():
        output = output.clone()  # writing over a view later on would lead gradients past the hook
    if output.requires_grad:
        output.register_hook(take)  # type: ignore[no-untyped-call]
        return output
    # A first layer: nothing before it asks for gradients, so a graph has to begin here.
    tapped: Tensor = _Tap.apply(output, root, take)  # type: ignore[no-untyped-call]
    return tapped


class _Book:
    """What one layer took in and what came back, until every use is in; then its share."""

    def __init__(self, layer: nn.Module, wants: frozenset[str]) -> None:
        self.layer, self.wants = layer, wants
        self.calls, self.taken, self.uses = 0, 0, list[Use]()
        self.share: Share | None = None

    def note(self, x: Tensor) -> Callable[[Tensor], None]:
        """One more use; returns what takes its gradient."""
        self.calls += 1
        version = x._version

        def take(g: Tensor) -> None:
            if x._version != version:
                raise StackError(
                    f"the input of a {type(self.layer).__name__} is written over later in the forward pass",
                    "dp-sgd",
                    "set inplace=False",
                )
            self.uses.append((x, g.detach()))
            self.taken += 1
            if self.taken == self.calls:
                self.close()

        return take

    @torch.no_grad()
    def close(self) -> None:
        """Turn what is noted into the share, and forget it."""
        rule = rule_for(self.layer)
        assert rule is not None  # whoever asks for books has looked
        self.share = rule(self.layer, self.uses, self.wants)
        self.uses = []


@contextmanager
def _books(model: nn.Module, root: Tensor) -> Iterator[list[_Book]]:
    """Open a book for every layer; put the model back as it was in the end."""
    books, hooks = [], []
    frozen = [p for p in model.parameters() if p.requires_grad]
    writing = [m for m in model.modules() if getattr(m, "inplace", False) is True]
    for layer in owners(model):
        wants = frozenset(n for n, p in layer.named_parameters(recurse=False) if p.requires_grad)
        book = _Book(layer, wants)
        books.append(book)

        def look(layer: nn.Module, given: tuple[Tensor, ...], output: Tensor, book: _Book = book) -> Tensor:
            return _tap(output, root, book.note(given[0].detach()))

        hooks.append(layer.register_forward_hook(look))
    try:
        for parameter in frozen:
            parameter.requires_grad_(False)
        for layer in writing:
            layer.inplace = False  # type: ignore[assignment]
        yield books
    finally:
        for hook in hooks:
            hook.remove()
        for parameter in frozen:
            parameter.requires_grad_(True)
        for layer in writing:
            layer.inplace = True  # type: ignore[assignment]
