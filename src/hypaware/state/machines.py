"""The machines whose rows a server has received, by the names that people know them by.

A row carries the id of its gateway. A server also knows the host name that the gateway gave, and the label of the
bootstrap token that it enrolled with: the name of the person, or of the group, that the token was made for.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hypaware.errors import HypError
from hypaware.state import ledger
from hypaware.state.location import has_state, open_store

if TYPE_CHECKING:
    from hypaware.home import Home


@dataclass(frozen=True)
class MachineNames:
    """Known machines; a machine that is not listed is known by its id only."""

    hosts: Mapping[str, str] = field(default_factory=dict)
    people: Mapping[str, str] = field(default_factory=dict)

    def name_of(self, machine: str) -> str:
        """Return the host name, or the id of a machine that has none. Hosts with the same name get distinct names."""
        host = self.hosts.get(machine)
        if host is None:
            return machine
        is_shared = Counter(self.hosts.values())[host] > 1
        return f"{host} ({machine})" if is_shared else host

    def person_of(self, machine: str) -> str | None:
        return self.people.get(machine)

    def machines_of(self, person: str) -> frozenset[str]:
        return frozenset(machine for machine, owner in self.people.items() if owner == person)

    def list_people(self) -> list[str]:
        return sorted(set(self.people.values()), key=str.casefold)


def read_machines(home: Home) -> MachineNames:
    """Return the machines of a server's state. Changes no file; a state that cannot be read gives none."""

    if not has_state(home):
        return MachineNames()
    try:
        with open_store(home, read_only=True).reading() as connection:
            gateways = ledger.list_gateways(connection, ledger.DEFAULT_TENANT)
    except (HypError, OSError, sqlite3.Error):
        return MachineNames()
    return MachineNames(
        _by_id((each.gateway_id, each.host) for each in gateways),
        _by_id((each.gateway_id, each.label) for each in gateways),
    )


def _by_id(found: Iterable[tuple[str, str | None]]) -> dict[str, str]:
    return {machine: name for machine, name in found if name}
