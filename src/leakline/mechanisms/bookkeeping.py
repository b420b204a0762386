"""Bookkeeping: one ordinary forward and backward pass that notes what each layer took in and what came back.

Within their layer weights ask for no gradient, so autograd forms none of its own; what they would have been is worked
out from the books, layer by layer, as soon as a layer's last use has come back. What is noted is then let go. A weight
that is used past its layer does get a gradient, in every pass, and then the books are not complete.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from leakline.errors import StackError
from leakline.mechanisms.layer_gradients import Rule, Share, Use, least, rule_for
from leakline.mechanisms.units import Members

Shares = list[tuple[nn.Module, Share]]
"""Layers, and each one's share in the units' gradients."""


def owners(model: nn.Module) -> list[nn.Module]:
    """The layers that hold trained parameters of their own."""
    return [m for m in model.modules() if any(p.requires_grad for p in m.parameters(recurse=False))]


def shares_of(
    model: nn.Module, loss: Callable[[Tensor, Tensor], Tensor], x: Tensor, y: Tensor, members: Members
) -> tuple[Shares, Tensor] | None:
    """Every layer's share in the sums of the units' gradients, and the loss; None if the books are not complete.

    They are not where a trained parameter belongs to no layer with a rule, or to two; where a layer is called with
    something else than one input, the example first, or is not called; where a use's gradient never comes back; and
    where a weight is used past its layer: then a gradient reaches it, which is not in the books.

    The loss is a mean: an example's own gradient is len(x) times what comes back to it.
    """
    layers = [(layer, rule_for(layer)) for layer in owners(model)]
    trained = [p for layer, _ in layers for p in layer.parameters(recurse=False) if p.requires_grad]
    if len({id(p) for p in trained}) != len(trained):
        return None
    books = [_Book(layer, rule, members) for layer, rule in layers if rule is not None]
    if len(books) != len(layers):
        return None
    root = torch.zeros((), requires_grad=True)
    with _open(model, books, root):
        value = loss(model(x), y)
        if not value.requires_grad:
            return None
        scale = torch.full_like(value, len(x))
        _, *strays = torch.autograd.grad(value, [root, *trained], scale, allow_unused=True)
    shares = [(book.layer, book.share) for book in books if book.share is not None]
    complete = len(shares) == len(books) and all(stray is None for stray in strays)
    return (shares, value.detach()) if complete else None


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

    def __init__(self, layer: nn.Module, rule: Rule, members: Members) -> None:
        self.layer, self.rule, self.members = layer, rule, members
        self.trained = {n: p for n, p in layer.named_parameters(recurse=False) if p.requires_grad}
        self.calls, self.taken, self.uses = 0, 0, list[Use]()
        self.share: Share | None = None

    def begin(self, *_: Any) -> None:
        """Within the layer its weights ask for no gradient: the books have it. Elsewhere they do, and it shows."""
        for parameter in self.trained.values():
            parameter.requires_grad_(False)

    def end(self, layer: nn.Module, given: tuple[Any, ...], named: dict[str, Any], output: Tensor, root: Tensor) -> Any:
        """Note a use, unless it is one that the rule does not know: then the book is never closed."""
        for parameter in self.trained.values():
            parameter.requires_grad_(True)
        (x, *more) = (*given, *named.values())
        examples = len(self.members.of)
        if more or x.dim() < least(layer) or len(x) != examples or len(output) != examples:
            self.calls += 1
            return None
        return _tap(output, root, self.note(x.detach()))

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
        self.share = self.rule(self.layer, self.uses, frozenset(self.trained), self.members)
        self.uses = []


@contextmanager
def _open(model: nn.Module, books: Sequence[_Book], root: Tensor) -> Iterator[None]:
    """Have the layers write into their books; put the model back as it was in the end."""
    writing = [m for m in model.modules() if getattr(m, "inplace", False) is True]
    hooks: list[RemovableHandle] = []
    try:
        for book in books:
            hooks.append(book.layer.register_forward_pre_hook(book.begin))
            hooks.append(book.layer.register_forward_hook(partial(book.end, root=root), with_kwargs=True))
        for layer in writing:
            layer.inplace = False  # type: ignore[assignment]
        yield
    finally:
        for hook in hooks:
            hook.remove()
        for book in books:
            for parameter in book.trained.values():
                parameter.requires_grad_(True)
        for layer in writing:
            layer.inplace = True  # type: ignore[assignment]
