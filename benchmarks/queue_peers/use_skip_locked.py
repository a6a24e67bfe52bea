"""A loop by hand over the statements of pgmq: read ten under a timeout, delete each when it was handled."""

import json
import time

import psycopg
from handled import URL, handled

CREATE = """
    CREATE TABLE message (
        msg_id bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY, read_ct int NOT NULL DEFAULT 0,
        enqueued_at timestamptz NOT NULL DEFAULT now(), vt timestamptz NOT NULL, message jsonb
    );
    CREATE INDEX ON message (vt ASC)
"""
READ = """
    WITH picked AS (
        SELECT msg_id FROM message WHERE vt <= clock_timestamp() ORDER BY msg_id LIMIT 10 FOR UPDATE SKIP LOCKED
    )
    UPDATE message SET vt = clock_timestamp() + interval '30 seconds', read_ct = read_ct + 1
    FROM picked WHERE message.msg_id = picked.msg_id RETURNING message.msg_id, message.message
"""


def fill(count: int) -> None:
    with psycopg.connect(URL, autocommit=True) as connection:
        connection.execute(CREATE)
        connection.execute(
            "INSERT INTO message (vt, message)"
            " SELECT now(), jsonb_build_object('n', n) FROM generate_series(0, %s) AS n",
            (count - 1,),
        )


def main() -> None:
    with psycopg.connect(URL, autocommit=True) as connection:
        while True:
            rows = connection.execute(READ).fetchall()
            for id, message in rows:
                handled((json.loads(message) if isinstance(message, str) else message)["n"])
                connection.execute("DELETE FROM message WHERE msg_id = %s", (id,))
            if not rows:
                time.sleep(0.05)


if __name__ == "__main__":
    main()
