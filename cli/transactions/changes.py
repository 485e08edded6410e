"""Changes that a command makes: confirmation, dry run, the transactions sent and their costs, and the result."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

import typer

from cli.exit_codes import WrongUsage
from cli.output.printing import note, say, show_json, show_result
from cli.output.values import Ether

if TYPE_CHECKING:
    from ledger.transactions.receipts import Receipt

DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="Only show what would be done and what it would cost; change nothing.")
]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Act without asking for confirmation.")]


@dataclass(slots=True)
class Change:
    """One change that a command makes, on the ledger or in a service.

    Args:
        as_json: Print the result as JSON.
        question: Question about a change that can't be undone; without one, nothing is asked.
        confirmed: The user gave `--yes`.
        dry_run: Send nothing. The first transaction is simulated and shown, and the command ends with success.
    """

    as_json: bool = False
    question: str = ""
    confirmed: bool = False
    dry_run: bool = False
    receipts: list[Receipt] = field(default_factory=list)
    """Receipts of the transactions that the command has sent, in order."""

    def require_answer(self) -> None:
        """Checks that the user can confirm the change.

        Raises:
            WrongUsage: The change needs a confirmation, and there is neither `--yes` nor a terminal.
        """
        if self.question and not (self.confirmed or self.dry_run or sys.stdin.isatty()):
            raise WrongUsage(
                f"this command asks for confirmation, and there is no terminal: {self.question}",
                hint="give --yes to act without asking, or --dry-run to see what would be done",
            )

    def confirm(self, what: str = "") -> None:
        """Asks for confirmation once, unless the user gave `--yes`.

        Args:
            what: The transaction that would be sent, with its cost.

        Raises:
            WrongUsage: There is no terminal.
            typer.Abort: The answer is no.
        """
        if not self.question or self.confirmed:
            return
        self.require_answer()
        if what:
            note(what)
        typer.confirm(self.question, abort=True, err=True)
        self.confirmed = True

    def end_dry_run(self, text: str, fields: Mapping[str, object]) -> None:
        """Prints what the command would do, and ends the command.

        Raises:
            typer.Exit: Always, with the code 0.
        """
        if self.as_json:
            show_json({"dry_run": True, **fields})
        else:
            say(f"{text}; nothing was changed")
        raise typer.Exit

    def plan_request(self, what: str) -> None:
        """Confirms a change that a service makes; in a dry run, shows it and ends the command.

        Args:
            what: What would happen, as a clause: `delete the webhook 12`.

        Raises:
            WrongUsage: There is no terminal, and no `--yes`.
            typer.Abort: The answer is no.
            typer.Exit: This is a dry run.
        """
        if self.dry_run:
            self.end_dry_run(f"would {what}", {"would": what})
        self.confirm()

    def add(self, receipt: Receipt) -> None:
        """Records a mined transaction, and reports it on standard error at once unless the result is JSON."""
        self.receipts.append(receipt)
        if self.as_json:
            return
        note(f"transaction {receipt.transaction}: {receipt.gas_used:,} gas, {_cost(receipt).text}")

    def show(self, text: str, **fields: object) -> None:
        """Prints the result; JSON has the transactions as well."""
        show_result(text, {**fields, "transactions": self.transactions}, as_json=self.as_json)

    @property
    def transactions(self) -> list[dict[str, object]]:
        """The transactions that were sent, for JSON."""
        return [
            {
                "hash": receipt.transaction,
                "block": receipt.block_number,
                "gas_used": receipt.gas_used,
                "cost": _cost(receipt),
            }
            for receipt in self.receipts
        ]


def _cost(receipt: Receipt) -> Ether:
    return Ether(receipt.gas_used * receipt.gas_price)
