"""The gateway's database: which migrations are missing, and the one script that applies them.

LiteLLM ships its migrations as ``NNN_name/migration.sql`` and applies them with Prisma's schema engine, a binary on no
package index. They are plain SQL; this module keeps the same ledger (``_prisma_migrations``), so Prisma's own tool sees
a database that it could have made itself.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

LEDGER = """CREATE TABLE IF NOT EXISTS "_prisma_migrations" (
  "id" VARCHAR(36) PRIMARY KEY NOT NULL,
  "checksum" VARCHAR(64) NOT NULL,
  "finished_at" TIMESTAMPTZ,
  "migration_name" VARCHAR(255) NOT NULL,
  "logs" TEXT,
  "rolled_back_at" TIMESTAMPTZ,
  "started_at" TIMESTAMPTZ NOT NULL DEFAULT now(),
  "applied_steps_count" INTEGER NOT NULL DEFAULT 0
);"""
# Prints the names that are done, then "?" and those that were begun and never finished.
LEDGER_QUERY = (
    "SELECT CASE WHEN finished_at IS NULL THEN '?' ELSE '' END || migration_name FROM \"_prisma_migrations\""
    " WHERE rolled_back_at IS NULL ORDER BY 1"
)
_IDENTIFIER = re.compile(r"[a-z_][a-z0-9_]{0,62}")
# PostgreSQL refuses it inside of a transaction.
_NO_TRANSACTION = re.compile(r"\bCONCURRENTLY\b", re.IGNORECASE)


@dataclass(frozen=True)
class Migration:
    """One migration: the name of its directory (which may contain spaces) and its text."""

    name: str
    sql: str

    @property
    def checksum(self) -> str:
        """SHA-256 of the file, as Prisma records it."""
        return hashlib.sha256(self.sql.encode()).hexdigest()


def identifier(name: str) -> str:
    """Return a name of a role or database that needs no quoting.

    Raises:
        ValueError: it would need some.
    """
    if not _IDENTIFIER.fullmatch(name):
        raise ValueError(f"expected a name of lower-case letters, digits and _, seen {name!r}")
    return name


def begun(ledger: Iterable[str]) -> list[str]:
    """Return the migrations of a ledger (lines of :data:`LEDGER_QUERY`) that were begun and never finished."""
    return [line[1:] for line in ledger if line.startswith("?")]


def pending(available: Iterable[str], ledger: Iterable[str]) -> list[str]:
    """Return the names of migrations that are still to apply, in order."""
    return sorted(set(available) - set(ledger))


def script(migrations: Sequence[Migration], owner: str) -> str:
    """Return the SQL that applies the migrations as ``owner`` and records each with its own effect.

    One transaction per migration, so a killed run leaves whole migrations only and the next one goes on; where
    PostgreSQL forbids that (indexes built concurrently), the record follows the effect.
    """
    lines = [f"SET ROLE {identifier(owner)};", LEDGER]
    for migration in migrations:
        name = migration.name.replace("'", "''")
        record = (
            'INSERT INTO "_prisma_migrations" (id, checksum, finished_at, migration_name, applied_steps_count)'
            f" VALUES (gen_random_uuid()::text, '{migration.checksum}', now(), '{name}', 1);"
        )
        body = [migration.sql.rstrip(), ";", record]
        whole = not _NO_TRANSACTION.search(migration.sql)
        lines += ["BEGIN;", *body, "COMMIT;"] if whole else body
    return "\n".join(lines) + "\n"
