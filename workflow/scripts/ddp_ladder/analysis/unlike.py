"""In what two compared runs are not alike: named beside the ratio, which is given all the same. Pure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from ddp_ladder.records.fingerprint import distinct_words, must_match
from ddp_ladder.records.record import Record
from ddp_ladder.settings.compared_fields import REASONS

_BATCH = "samples/s can be compared, but the optimisation differs: compare the accuracy too"
_PRECISION = "the precision differs: compare the accuracy too"
MEANINGS = {
    **REASONS,
    **dict.fromkeys(("batch_per_gpu", "global_batch"), _BATCH),
    **dict.fromkeys(("parameter_dtype", "autocast_dtype", "product_dtypes", "float32_products"), _PRECISION),
}
"""By field: what a difference means for who reads the ratio."""


@dataclass(frozen=True)
class Unlike:
    """One field of the fingerprint with two values."""

    field: str
    reference: str
    here: str

    @property
    def in_words(self) -> str:
        """Return ``batch_per_gpu 128 (reference: 64)``."""
        return f"{self.field} {self.here} (reference: {self.reference})"

    @property
    def meaning(self) -> str:
        """Return what the difference means for the comparison."""
        return MEANINGS.get(self.field, "the work per sample may differ")


def unlike(reference: Record, here: Record, known: Collection[str] = ()) -> tuple[Unlike, ...]:
    """Return the fields that differ between two runs of one mode. known: fields that are named elsewhere."""
    found = []
    for field in must_match(reference.spec.mode):
        values = None if field.name in known else field.differ(reference, here)
        if values is not None:
            found.append(Unlike(field.name, *distinct_words(field.name, *values)))
    return tuple(found)
