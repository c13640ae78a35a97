"""What every loss must keep."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, get_args

from miles_core.kinds.losses import LossBatch, Need, TokenLoss, TokenOutputs
from miles_core.testing.suites.base import PluginSuite

if TYPE_CHECKING:
    import torch

_ROWS, _WIDTH = 4, 9


class LossSuite(PluginSuite):
    """Conformance of losses, on random micro-batches.

    ``tolerance`` is how far numbers may differ where sums are taken in another order.
    """

    kind = "losses"
    tolerance: ClassVar[float] = 1e-5

    def inputs(self, *, scale: float = 0.3, fill: bool = False) -> tuple[TokenOutputs, LossBatch]:
        """A micro-batch ``[4, 9]`` with padding and one row that is not trained; ``scale`` spreads the log-ratios.

        Optional inputs are given as ``needs`` names them, or all of them with ``fill``.
        """
        import torch

        draw = torch.Generator().manual_seed(3)

        def random() -> torch.Tensor:
            return torch.randn(_ROWS, _WIDTH, generator=draw)

        needs = set(self.make().needs) | (set(get_args(Need)) if fill else set())
        lengths = torch.tensor([9, 6, 4, 7])[:, None]
        place = torch.arange(_WIDTH)[None]
        mask = (place >= 2) & (place < lengths)
        mask[3] = False
        old = -random().abs() - 0.05
        entropy, reference, values = random().abs(), old + 0.1 * random(), random()
        outputs = TokenOutputs(
            logprobs=(old + scale * random()).requires_grad_(),
            entropy=entropy.requires_grad_() if "entropy" in needs else None,
            values=values.requires_grad_() if fill else None,
        )
        batch = LossBatch(
            mask=mask,
            advantages=random(),
            old_logprobs=old,
            rollout_logprobs=old + 0.01 * random(),
            reference_logprobs=reference if "reference_logprobs" in needs else None,
        )
        return outputs, batch

    def test_returns_a_value_per_token(self) -> None:
        """``loss`` returns a ``TokenLoss`` whose ``per_token`` and ``mask`` are ``[B, T]``: it never reduces."""
        outputs, batch = self.inputs()
        result = self.make().loss(outputs, batch)
        self.check(
            isinstance(result, TokenLoss), expected="a TokenLoss", got=type(result).__name__, remedy="Return it."
        )
        shapes = tuple(result.per_token.shape), tuple(result.mask.shape)
        self.check(
            shapes == ((_ROWS, _WIDTH),) * 2,
            expected=f"per_token and mask of shape {(_ROWS, _WIDTH)}",
            got=shapes,
            remedy="Leave sums and means to the core.",
        )

    def test_trains_no_token_outside_the_mask(self) -> None:
        """Its mask is the batch's or a part of it: prompts and observations are not trained."""
        outputs, batch = self.inputs()
        extra = int((self.make().loss(outputs, batch).mask.bool() & ~batch.mask).sum())
        self.check(extra == 0, expected="a part of batch.mask", got=f"{extra} tokens more", remedy="Use & batch.mask.")

    def test_value_and_gradient_are_always_finite(self) -> None:
        """Extreme ratios, padding and rows without trained tokens give no NaN and no infinity."""
        for scale in (0.0, 0.3, 1e3):
            outputs, batch = self.inputs(scale=scale)
            result = self.make().loss(outputs, batch)
            gradient = self._gradient(result, outputs)
            finite = bool(result.per_token.isfinite().all()) and bool(gradient.isfinite().all())
            self.check(
                finite,
                expected=f"finite losses and gradients at log-ratios of about {scale:g}",
                got=f"{int((~result.per_token.isfinite()).sum())} losses that are not, "
                f"{int((~gradient.isfinite()).sum())} gradients",
                remedy="Clamp before exp(): log_ratio.clamp(-20, 20).exp().",
            )

    def test_rows_do_not_mix(self) -> None:
        """A row's losses are the same alone and in a batch: how a step is split changes no gradient."""
        import torch

        outputs, batch = self.inputs()
        made = self.make()
        whole = made.loss(outputs, batch).per_token.detach()
        rows = [made.loss(_rows(outputs, n, n + 1), _rows(batch, n, n + 1)).per_token.detach() for n in range(_ROWS)]
        apart = torch.cat(rows)
        self.check(
            torch.allclose(whole[batch.mask], apart[batch.mask], atol=self.tolerance),
            expected="the same losses row by row",
            got=f"a difference of {float((whole - apart)[batch.mask].abs().max()):.3g}",
            remedy="Take no mean over the batch: statistics of a step belong to the advantage estimator.",
        )

    def test_metrics_add_up(self) -> None:
        """``metrics`` are pairs (sum, count): those of two halves add up to those of the whole."""
        outputs, batch = self.inputs()
        made = self.make()
        whole = made.loss(outputs, batch).metrics
        halves = [made.loss(_rows(outputs, *cut), _rows(batch, *cut)).metrics for cut in ((0, 2), (2, _ROWS))]
        for name, pair in whole.items():
            self.check(
                isinstance(pair, tuple) and len(pair) == 2,
                expected=f"(sum, count) for {name}",
                got=pair,
                remedy="Return the sum and the number of summands.",
            )
            for number, part in enumerate(("sum", "count")):
                added = sum(float(half[name][number]) for half in halves)
                self.check(
                    math.isclose(float(pair[number]), added, rel_tol=1e-4, abs_tol=1e-4),
                    expected=f"a {part} of {name} of {float(pair[number]):.5g}, added over two halves",
                    got=f"{added:.5g}",
                    remedy="Return sums, never means.",
                )

    def test_masked_tokens_change_nothing(self) -> None:
        """Numbers outside the mask are padding: they change no loss within it."""
        import torch

        outputs, batch = self.inputs()
        made = self.make()
        keep = batch.mask
        changed = made.loss(
            replace(outputs, logprobs=torch.where(keep, outputs.logprobs, outputs.logprobs - 1.5)),
            replace(batch, advantages=torch.where(keep, batch.advantages, batch.advantages + 4)),
        )
        original = made.loss(outputs, batch)
        trained = original.mask.bool() & keep
        self.check(
            torch.allclose(original.per_token[trained], changed.per_token[trained], atol=self.tolerance),
            expected="losses that depend on trained tokens alone",
            got="others when numbers outside the mask change",
            remedy="Use batch.mask in every sum over a row.",
        )

    def test_reads_only_what_it_needs(self) -> None:
        """Inputs that ``needs`` does not name may be there or not: the result is the same."""
        import torch

        made = self.make()
        few, many = (made.loss(*self.inputs(fill=fill)).per_token for fill in (False, True))
        self.check(
            torch.equal(few, many),
            expected=f"losses that depend on needs = {tuple(made.needs)} alone",
            got="others when more inputs are given",
            remedy="Add the input to `needs`.",
        )

    def _gradient(self, result: TokenLoss, outputs: TokenOutputs) -> torch.Tensor:
        import torch

        total = torch.where(result.mask.bool(), result.per_token, 0.0).sum()
        if not total.requires_grad:
            return torch.zeros_like(outputs.logprobs)
        gradients = torch.autograd.grad(total, outputs.logprobs, allow_unused=True)
        return torch.zeros_like(outputs.logprobs) if gradients[0] is None else gradients[0]


def _rows(of: Any, start: int, end: int) -> Any:
    parts = {field.name: getattr(of, field.name) for field in fields(of)}
    return replace(of, **{name: None if value is None else value[start:end] for name, value in parts.items()})
