"""Sender of the transactions of one command."""

from __future__ import annotations

from typing import Any

from cli.output.progress import working
from cli.output.values import Ether
from cli.transactions.changes import Change
from ledger.transactions.receipts import Receipt
from ledger.transactions.sender import TransactionCall, TransactionSender


class CommandSender(TransactionSender):
    """Confirms, simulates and reports transactions.

    Args:
        arguments: As for `TransactionSender`.
        change: The change that the command makes.
        options: As for `TransactionSender`.
    """

    def __init__(self, *arguments: Any, change: Change, **options: Any) -> None:  # noqa: ANN401
        super().__init__(*arguments, **options)
        self._change = change

    async def send(self, call: TransactionCall, **options: Any) -> Receipt:  # noqa: ANN401 - as the base class
        """Sends a call once it is confirmed; in a dry run, simulates it and ends the command.

        Without either there is no `await` before the base class, which assigns nonces in the order of the calls.
        """
        if self._change.dry_run or (self._change.question and not self._change.confirmed):
            await self._plan(call)
        with working(f"waiting for the transaction {call.name or ''}"):
            receipt = await super().send(call, **options)
        self._change.add(receipt)
        return receipt

    async def _plan(self, call: TransactionCall) -> None:
        gas = await self.estimate(call)
        most = Ether(gas * await self.most_fee())
        what = f"would send {call.name or 'a transaction'} to {call.to} from {self.address}"
        what += f": at most {gas:,} gas, {most.text}"
        if self._change.dry_run:
            fields = {
                "call": call.name,
                "from": self.address,
                "to": call.to,
                "data": "0x" + call.data.hex(),
                "most_gas": gas,
                "most_cost": most,
            }
            self._change.end_dry_run(what, {"transaction": fields})
        self._change.confirm(what)
