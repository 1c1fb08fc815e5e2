from __future__ import annotations

DOCUMENTATION = r"""
module: litellm_database
short_description: PostgreSQL role, database and schema of a LiteLLM proxy
description:
  - Makes the role and the database when they are absent, and applies the migrations that the database has not seen, in
    one run of C(psql).
  - A database that already has a schema is dumped before it is migrated, and before another release uses it.
  - Talks to the local PostgreSQL as its superuser C(postgres), through the socket; there is no password. The role has
    the name of the system user that runs the proxy, so PostgreSQL's peer authentication lets exactly that user in.
options:
  database:
    description: Name of the database.
    type: str
    required: true
  owner:
    description: Name of the role, which is that of the proxy's system user.
    type: str
    required: true
  migrations:
    description: Directory of migrations, C(litellm_proxy_extras/migrations) in the proxy's site-packages.
    type: path
    required: true
  dump_dir:
    description: Directory, writable by C(postgres), for dumps made before a migration.
    type: path
    required: true
  dump:
    description: Dump it also when nothing is to be migrated, because another release of the proxy is about to use it.
    type: bool
    default: false
attributes:
  check_mode:
    support: full
    description: Tells what would be applied.
  diff_mode:
    support: full
    description: Lists the migrations.
author: [seatfleet]
"""

EXAMPLES = r"""
- name: Migrate the database
  seatfleet.fleet.litellm_database:
    database: litellm
    owner: litellm
    migrations: /opt/litellm/current/lib/python3.11/site-packages/litellm_proxy_extras/migrations
    dump_dir: /var/lib/litellm-dumps
"""

RETURN = r"""
applied:
  description: Migrations that were (or in check mode would be) applied.
  type: list
  elements: str
  returned: success
dump:
  description: The dump made before.
  type: str
  returned: when one was made
"""

import time
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.seatfleet.fleet.plugins.module_utils.seatfleet.core.gateway.database import (
    LEDGER_QUERY,
    Migration,
    begun,
    identifier,
    pending,
    script,
)


class Database:
    """The local PostgreSQL, through C(psql) as its superuser."""

    def __init__(self, module: AnsibleModule, name: str, owner: str) -> None:
        self.module = module
        self.name = identifier(name)
        self.owner = identifier(owner)

    def run(self, *argv: str, data: str | None = None) -> str:
        """Run a program as C(postgres); fail with its last words."""
        command = ["runuser", "-u", "postgres", "--", *argv]
        code, out, err = self.module.run_command(command, data=data, cwd="/")
        if code != 0:
            words = "\n".join(err.strip().splitlines()[-5:])
            self.module.fail_json(msg=f"{argv[0]} on database {self.name} ended with {code}: {words}")
        return out

    def query(self, database: str, sql: str) -> list[str]:
        """Return the lines that a query prints."""
        arguments = ["-X", "-q", "-At", "-v", "ON_ERROR_STOP=1", "-d", database]
        return self.run("psql", *arguments, "-c", sql).splitlines()

    def state(self) -> tuple[bool, bool]:
        """Tell whether the role and the database exist."""
        sql = (
            f"SELECT 'role' FROM pg_roles WHERE rolname = '{self.owner}'"
            f" UNION SELECT 'database' FROM pg_database WHERE datname = '{self.name}'"
        )
        seen = self.query("postgres", sql)
        return "role" in seen, "database" in seen

    def ledger(self) -> list[str]:
        """Return the ledger's lines, none for a database without one."""
        if self.query(self.name, "SELECT to_regclass('public._prisma_migrations') IS NULL") == ["t"]:
            return []
        return self.query(self.name, LEDGER_QUERY)

    def create(self, role: bool) -> None:
        """Make the database, and the role when that is absent too."""
        if not role:
            self.query("postgres", f"CREATE ROLE {self.owner} LOGIN")
        self.run("createdb", "--owner", self.owner, "--encoding", "UTF8", "--template", "template0", self.name)

    def dump(self, directory: str, label: str) -> str:
        """Write a dump and return its path."""
        path = f"{directory}/{self.name}-before-{label}-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}.dump"
        self.run("pg_dump", "--format", "custom", "--file", path, self.name)
        return path


def read_migrations(directory: Path) -> dict[str, Path]:
    """Return name -> file of every migration of an installation."""
    return {path.parent.name: path for path in directory.glob("*/migration.sql")}


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "database": {"type": "str", "required": True},
            "owner": {"type": "str", "required": True},
            "migrations": {"type": "path", "required": True},
            "dump_dir": {"type": "path", "required": True},
            "dump": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    params = module.params
    files = read_migrations(Path(params["migrations"]))
    if not files and not module.check_mode:
        module.fail_json(msg=f"no migrations in {params['migrations']}: is the proxy installed?")
    if module.check_mode and (not files or module.run_command(["sh", "-c", "command -v psql"])[0] != 0):
        module.exit_json(changed=True, applied=[], diff={"before": "", "after": "role, database and schema\n"})
    try:
        database = Database(module, params["database"], params["owner"])
    except ValueError as error:
        module.fail_json(msg=str(error))
    role, present = database.state()
    ledger = database.ledger() if present else []
    if stuck := begun(ledger):
        module.fail_json(
            msg=f"migration {stuck[0]} of database {params['database']} was begun by another program and never"
            " finished: look at its effect, then set finished_at or rolled_back_at in _prisma_migrations"
        )
    names = pending(files, ledger)
    dumping = bool(ledger) and (bool(names) or params["dump"])
    dump = None
    if not module.check_mode:
        if not present:
            database.create(role)
        if dumping:
            dump = database.dump(params["dump_dir"], (names or sorted(ledger))[-1].split("_", 1)[0])
        if names:
            migrations = [Migration(name, files[name].read_text(encoding="utf-8")) for name in names]
            database.run(
                "psql", "-X", "-q", "-v", "ON_ERROR_STOP=1", "-d", params["database"], "-f", "-",
                data=script(migrations, params["owner"]),
            )  # fmt: skip
    before = "".join(f"{line}\n" for line in ledger)
    after = before + "".join(f"{name}\n" for name in names) + "a dump\n" * dumping
    module.exit_json(
        changed=bool(names) or dumping or not present,
        applied=names,
        dump=dump,
        diff={"before": before, "after": after},
    )


if __name__ == "__main__":
    main()
