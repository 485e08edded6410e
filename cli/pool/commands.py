"""`muster pool`: commands that create, fund, configure and operate a pool."""

from __future__ import annotations

from cli.groups import CommandGroup
from cli.lazy import Parts

PARTS: Parts = {
    "create": ("cli.pool.ledger:create", "Create a pool; the signing key becomes its owner."),
    "activate": ("cli.pool.ledger:activate", "Activate a pending pool, so that nodes can join it."),
    "end": (
        "cli.pool.ledger:end",
        "Close a pool permanently: no new members, no new work. Open work is still judged and paid.",
    ),
    "fund": ("cli.pool.ledger:fund", "Deposit escrow, from which the pool pays. Any account may deposit."),
    "withdraw": (
        "cli.pool.ledger:withdraw",
        "Announce a withdrawal of escrow that no open work needs; run again after the notice period to withdraw.",
    ),
    "show": ("cli.pool.ledger:show", "Show a pool: its owner, terms, escrow and members."),
    "economics": (
        "cli.pool.ledger:economics",
        "Show what a pool pays for work and what attacks cost, computed from its terms.",
    ),
    "terms": (
        "cli.pool.ledger:terms",
        "Propose new terms; in an active pool they take effect after the notice period.",
    ),
    "list": ("cli.pool.listing:list_", "List pools, newest first, with the outcomes of their newest 200 works."),
    "url": ("cli.pool.url", "Put the pool's URL on the ledger, where contributors find it."),
    "roles": ("cli.pool.roles:roles", "Show the roles of a pool, rotate a role's key, or add and remove validators."),
    "transfer": ("cli.pool.roles:transfer", "Offer the pool to another owner."),
    "accept": ("cli.pool.roles:accept", "Take over a pool that was offered to you."),
    "invite": (
        "cli.pool.members:invite",
        "Sign an invite for one node. The invite can be used once, by this node only, until it expires.",
    ),
    "cancel-invite": ("cli.pool.members:cancel_invite", "Cancel an unused invite."),
    "evict": ("cli.pool.members:evict", "Evict a node from the pool; the pool may invite the node again."),
    "nodes": ("cli.pool.nodes:nodes", "List the pool's nodes."),
    "node": ("cli.pool.nodes:node", "Show one node: state and reason, assignment, hardware, metrics and history."),
    "restart": ("cli.pool.nodes:restart", "Restart a node's task in a new container."),
    "drain": ("cli.pool.nodes:drain", "Let a node finish its task, and assign no other task to it until `resume`."),
    "resume": ("cli.pool.nodes:resume", "End a node's drain, so that it gets tasks again."),
    "ban": ("cli.pool.nodes:ban", "Ban a node from the pool, until `unban`."),
    "unban": ("cli.pool.nodes:unban", "Lift a node's ban, so that the pool may invite the node again."),
    "ban-provider": (
        "cli.pool.providers:ban_provider",
        "Ban a provider: none of its nodes may join the pool or submit work, until `unban-provider`.",
    ),
    "unban-provider": (
        "cli.pool.providers:unban_provider",
        "Lift a provider's ban. A node that was also banned by `muster pool ban` stays banned.",
    ),
    "page": ("cli.pool.page:page", "Show the address of the pool's web page, and where its token is configured."),
    "tasks": ("cli.pool.tasks:tasks", "List the pool's tasks."),
    "task": ("cli.pool.tasks:task", "Show one task."),
    "run": (
        "cli.pool.tasks:run",
        "Post a task from a TOML or JSON file, from options, or from both; options override the file.",
    ),
    "assignments": (
        "cli.pool.assignments:assignments",
        "List assignments of tasks to nodes, newest first. Ended ones are kept for 7 days with their logs.",
    ),
    "groups": ("cli.pool.tasks:groups", "List groups. A group consists of nodes that run one task together."),
    "stop": ("cli.pool.changes:stop", "Stop a task on all its nodes."),
    "start": ("cli.pool.changes:start", "Run a stopped task again."),
    "change": ("cli.pool.changes:change", "Change the priority of a task or the number of nodes that run it."),
    "set-secrets": (
        "cli.pool.changes:set_secrets",
        "Replace all secrets of a task, or its registry credentials; its containers are replaced at once.",
    ),
    "progress": (
        "cli.pool.runs:progress",
        "Show the policy's version, and the groups that each step has and still needs.",
    ),
    "rollouts": ("cli.pool.runs:rollouts", "List submitted files with node, step, reported metrics and outcome."),
    "deliveries": (
        "cli.pool.runs:deliveries",
        "Show the node's share of delivered leases, and the outcome of each lease.",
    ),
    "demand": (
        "cli.pool.runs:demand",
        "Set the total demand of a step in groups, or close the step. A trainer does this automatically.",
    ),
    "publish": ("cli.pool.runs:publish", "Tell the orchestrator to lease slots for an announced version."),
    "download": (
        "cli.pool.download:download",
        "Download a submitted file, check its hash, and print the parts of its slot's seed.",
    ),
    "logs": (
        "cli.pool.watch:logs",
        "Show the output of tasks: the stored lines, and with --follow also new lines as they come.",
    ),
    "events": (
        "cli.pool.watch:events",
        "Show events of nodes, assignments and tasks. With --json and --follow, one object per line.",
    ),
    "webhooks": ("cli.pool.webhooks:webhooks", "List webhooks with the state of their deliveries."),
    "add-webhook": ("cli.pool.webhooks:add_webhook", "Deliver the pool's events to a URL, in signed requests."),
    "rotate-webhook": (
        "cli.pool.webhooks:rotate_webhook",
        "Give a webhook a new secret; the old one stays valid for a day, or for --overlap.",
    ),
    "delete-webhook": (
        "cli.pool.webhooks:delete_webhook",
        "Delete a webhook, so that its URL receives no more events.",
    ),
    "relays": ("cli.pool.relays", "Allow, deny and list checkpoint relays."),
}

app = CommandGroup(name="pool", no_args_is_help=True, help="Create and operate a pool.")
