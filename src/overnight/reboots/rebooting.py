"""Whether the machine was started anew since a run was begun, and how the run comes back from that.

Three cases: nobody has asked for the run yet (it has failed), somebody asks for it now, or an earlier supervisor was
killed while it was bringing the run back.
"""

from __future__ import annotations

import msgspec

from overnight.facts import Facts
from overnight.lifecycle import NOT_BACK
from overnight.processes import boot_id
from overnight.requests.asked import Asked
from overnight.states import RunState
from overnight.supervision.inbox import Inbox
from overnight.supervision.spending import Spending
from overnight.supervision.standing import Standing


class Reboot:
    """One run's view of the machine's boots."""

    def __init__(
        self, asked: Asked, standing: Standing, facts: Facts, inbox: Inbox, spending: Spending, *, adopting: bool
    ) -> None:
        self.asked = asked
        self.adopting = adopting
        self.standing = standing
        self.facts = facts
        self.inbox = inbox
        self.spending = spending

    def happened(self) -> bool:
        """Say whether the machine was started anew since the run was started, or since it was last brought back."""
        was = self.facts.boot_id or self.asked.boot_id
        return bool(was) and was != boot_id()

    def over(self, state: RunState) -> bool:
        """Say whether a run that has ended stays so."""
        return state.ended and not self.returning(state)

    def returning(self, state: RunState) -> bool:
        """Say whether the run is to go on: asked for just now, or by a request that is half obeyed."""
        if self.adopting:  # there is no shim that could start anything
            return False
        if not self.happened():
            return self.standing.lost
        lost = state.state == "failed" and state.cause == "host_rebooted"
        return lost and self.asked.spec.recover and self.inbox.holds("recover")

    def bring_back(self, state: RunState) -> RunState:
        """Write down that the run goes on in this boot; return the state to go on from."""
        if self.happened():
            active_s = self.spending.active_s(self.standing.attempt)
            used_s = max(active_s, self.spending.elapsed_before_s(self.standing.last_life))
            self.facts.say("recovered", boot_id=boot_id(), attempt=state.attempt)
            self.spending.begin_boot(used_s)
        return msgspec.structs.replace(state, state="failed", cause="host_rebooted", order=None)

    def leave(self, why: str, state: RunState) -> None:
        """Write down that the run stays ended, for there is nothing to go on from."""
        text = f"{state.cause_text or 'the machine was started anew'}; {NOT_BACK}: {why}"
        used_s = self.spending.elapsed_s(self.standing.attempt)
        self.facts.say("ended", state="failed", cause="host_rebooted", text=text, elapsed_s=used_s)
        self.facts.note(f"{NOT_BACK}: {why}")
