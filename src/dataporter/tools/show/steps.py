"""Steps counted back from where a run stands, into earlier epochs too.

The state says how far the run is, not where its batches began. With the batch size and the ranks
of the state they follow from that, unless those changed within the epoch: `is_aligned` tells.
"""

from __future__ import annotations

from dataclasses import dataclass

from dataporter.errors import OptionError
from dataporter.law import Plan
from dataporter.law.rest import Excluded, Rest, excluded_in, rest_of
from dataporter.law.state import Progress


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """A run that stands somewhere: how ranks share an epoch, and what is left out of it.

    >>> at = Standing(plan=Plan(length=10, batch_size=4), progress=Progress(2, 8, 2), excluded=())
    >>> [at.back(steps) for steps in range(5)]
    [(2, 4), (2, 0), (1, 8), (1, 4), (1, 0)]
    """

    plan: Plan
    progress: Progress
    excluded: Excluded
    lengths_differ: bool = False  # earlier epochs had fewer samples, and nobody knows how many

    def back(self, steps: int) -> tuple[int, int]:
        """Return the epoch and the position of the step so many before the last one."""
        epoch, rest = self.progress.epoch, self._rest(self.progress.epoch)
        made, left = self._made(rest), steps
        while left >= -(-made // self.plan.step_size):
            left -= -(-made // self.plan.step_size)
            epoch -= 1
            if epoch < 0:
                msg = (
                    f"--back {steps} is before the beginning of the run: only {steps - left:,} "
                    f"{'batch was' if steps - left == 1 else 'batches were'} delivered before the "
                    "state was saved. --back counts from 0, the batch delivered last."
                )
                raise OptionError(msg)
            if self.lengths_differ:
                msg = (
                    f"--back {steps} is in epoch {epoch:,}, and the dataset has grown since. The "
                    f"state does not say how long that epoch was. Stay in epoch {epoch + 1:,}."
                )
                raise OptionError(msg)
            rest = self._rest(epoch)
            made = rest.remaining
        return epoch, int(rest.around([self._start(rest, made, left)])[0])

    @property
    def is_aligned(self) -> bool:
        """True if all batches of this epoch had the size and the ranks of the state."""
        rest = self._rest(self.progress.epoch)
        made, steps = self._made(rest), self.progress.batches_processed
        is_whole = made == min(steps * self.plan.step_size, rest.remaining)
        return is_whole and steps == -(-made // self.plan.step_size)

    def _rest(self, epoch: int) -> Rest:
        """Return all of an epoch, counted around what is left out."""
        return rest_of(self.plan, 0, excluded_in(self.excluded, epoch))

    def _made(self, rest: Rest) -> int:
        """Count the positions of the state's epoch that were delivered."""
        if self.progress.finished:
            return rest.remaining
        position = self.progress.samples_processed
        return rest_of(self.plan, position, rest.gaps).start

    def _start(self, rest: Rest, made: int, back: int) -> int:
        """Return where a step began, counted around what is left out."""
        step = self.plan.step_size
        is_short = made >= rest.remaining and made % step
        last = made - (made % step if is_short else step)
        return max(last - back * step, 0)
