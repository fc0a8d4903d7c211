#!/bin/sh
# Starts a command of the image. Where the container has secrets it checks them first, and writes the passwords of the
# databases into the file that libpq and asyncpg read (PGPASSFILE). They accept only a file that nobody else may read,
# which a mounted secret is not; and in a URL a password would break at its first "/" or "@". Spark's secret goes into
# the file that master, workers and drivers read (SPARK_CONF_DIR): in a command line every process could read it.
set -eu

fail() {
    echo "sluice: $1" >&2
    echo "    Nothing was started. The commands that make all secrets are in .env.example." >&2
    exit 1
}

# The password of a role, for the database of the same name.
password() {
    # printf is the shell's own, and sed reads a file: the password appears in no list of processes
    printf '*:*:%s:%s:%s\n' "$1" "$1" "$(sed -n '1s/[\\:]/\\&/g;1p' "/run/secrets/$1_db_password")"
}

# Ends unless these secrets can be read.
check() {
    for name in "$@"; do
        [ -s "/run/secrets/$name" ] || fail "the secret $name is missing or empty"
        [ -r "/run/secrets/$name" ] || fail "the secret $name may not be read by user $(id -u): chmod a+r secrets/*"
    done
}

if [ -n "${SPARK_CONF_DIR:-}" ]; then
    check spark_secret
    rm -rf "$SPARK_CONF_DIR"
    (umask 077 && mkdir -p "$SPARK_CONF_DIR" && {
        echo 'spark.authenticate true'
        printf 'spark.authenticate.secret %s\n' "$(sed -n 1p /run/secrets/spark_secret)"
    } >"$SPARK_CONF_DIR/spark-defaults.conf")
fi

if [ -n "${PGPASSFILE:-}" ]; then
    check airflow_db_password ledger_db_password fernet_key api_secret_key jwt_secret
    # Airflow finds out only when it stores or reads the first connection
    grep -Eqx '[A-Za-z0-9_-]{43}=' /run/secrets/fernet_key ||
        fail "the secret fernet_key is no Fernet key: 32 bytes in url-safe base64, not in hex"
    rm -f "$PGPASSFILE"
    (umask 077 && { password airflow && password ledger; } >"$PGPASSFILE")
fi

exec "$@"
