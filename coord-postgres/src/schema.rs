//! The tables and the function: made once, replaced by newer versions, refused if they are newer still.

use coord_core::{ErrorKind, Operation};
use tokio_postgres::Client;

use crate::call::Work;
use crate::connection::{Connection, Connector, Server};
use crate::error::{Stage, Trouble, classify};

/// The version of the tables and the function. It grows with every change of the files in `sql/` that make them.
const VERSION: i32 = 1;

/// The lock that one holds who makes or replaces them: the letters of `coord`.
const LOCK: i32 = 0x636F_6F72;

/// A text of ours with the name of the schema filled in.
fn fill(sql: &str, schema: &str) -> String {
    // The configuration lets no quote into the name.
    sql.replace("{schema}", &format!("\"{schema}\""))
}

/// A statement of ours with the name of the schema filled in, without its comments, which need not travel with every call.
pub(crate) fn statement(sql: &str, schema: &str) -> String {
    let lines: Vec<&str> = sql.lines().filter(|line| !line.trim_start().starts_with("--")).collect();
    fill(&lines.join("\n"), schema)
}

/// The version that the schema says it has, `None` if it does not say any.
pub(crate) async fn read_version(client: &Client, schema: &str) -> Result<Option<i32>, Trouble> {
    let sql = fill("SELECT version FROM {schema}.format WHERE store = 'coord'", schema);
    let rows = client.query_typed(&sql, &[]).await.map_err(|error| classify(Stage::Connect, error))?;
    match rows.first() {
        Some(row) => row.try_get(0).map(Some).map_err(|error| classify(Stage::Connect, error)),
        None => Ok(None),
    }
}

/// Refuses what this version must not touch.
pub(crate) fn check_version(schema: &str, version: Option<i32>) -> Result<(), Trouble> {
    match version {
        Some(VERSION) => Ok(()),
        Some(version) if version > VERSION => Err(Trouble::new(
            ErrorKind::Config,
            format!(
                "the schema \"{schema}\" is of version {version}, made by a newer coord; this one knows {VERSION}: update it"
            ),
        )),
        Some(version) => Err(Trouble::new(
            ErrorKind::Config,
            format!(
                "the schema \"{schema}\" is of version {version}; open it with a user who may upgrade it to {VERSION}"
            ),
        )),
        None => Err(foreign(schema)),
    }
}

fn foreign(schema: &str) -> Trouble {
    Trouble::new(
        ErrorKind::Config,
        format!("the schema \"{schema}\" holds tables that are not coord's; name another one by `?schema=`"),
    )
}

/// Makes sure that the schema is there and of our version.
pub(crate) struct Prepare<'a> {
    pub(crate) connector: &'a Connector,
}

impl Work for Prepare<'_> {
    type Answer = ();
    const OPERATION: Operation = Operation::Connect;

    async fn run(&self, connection: &Connection) -> Result<(), Trouble> {
        // A transaction may be left open on it. (If this is dropped, so is the whole pool, for nobody has it yet.)
        prepare(self.connector, connection).await.map_err(Trouble::broken)
    }
}

async fn prepare(connector: &Connector, connection: &Connection) -> Result<(), Trouble> {
    let schema = connector.config().schema();
    let server = connector.look(connection).await?;
    if server.has_format {
        let version = read_version(connection.client(), schema).await?;
        // A user who may only use the tables gets along with this.
        if version.is_none_or(|version| version >= VERSION) {
            return check_version(schema, version);
        }
    }
    install(connector, connection).await
}

/// Makes or upgrades the schema, in one transaction, one client at a time.
async fn install(connector: &Connector, connection: &Connection) -> Result<(), Trouble> {
    let schema = connector.config().schema();
    let failed = |error| {
        let trouble = classify(Stage::Connect, error);
        Trouble {
            message: format!("the schema \"{schema}\" cannot be prepared: {}", trouble.message),
            ..trouble
        }
    };
    // Statements without parameters go in one message; whatever fails takes back all of them. Other clients wait here for their turn, and
    // then find everything made.
    let begin = format!("BEGIN; SELECT pg_advisory_xact_lock({LOCK}, hashtext('{schema}'))");
    connection.client().batch_execute(&begin).await.map_err(failed)?;
    let result = install_locked(connector, connection).await;
    let end = if result.is_ok() { "COMMIT" } else { "ROLLBACK" };
    let ended = connection.client().batch_execute(end).await.map_err(failed);
    result.and(ended)
}

async fn install_locked(connector: &Connector, connection: &Connection) -> Result<(), Trouble> {
    let schema = connector.config().schema();
    let client = connection.client();
    let Server { has_schema, has_format, has_others, .. } = connector.look(connection).await?;
    let found = if has_format { read_version(client, schema).await? } else { None };
    match found {
        Some(version) if version >= VERSION => return check_version(schema, found),
        Some(_) => {}
        None if has_format || has_others => return Err(foreign(schema)),
        None => {}
    }
    let mut sql = String::new();
    if !has_schema {
        // Not `IF NOT EXISTS`, which needs the privilege to create one even if it is there.
        sql.push_str("CREATE SCHEMA {schema};\n");
    }
    sql.push_str(include_str!("../sql/schema.sql"));
    sql.push_str(";\n");
    sql.push_str(include_str!("../sql/txn.sql"));
    sql.push_str(";\nINSERT INTO {schema}.format (store, version) VALUES ('coord', ");
    sql.push_str(&VERSION.to_string());
    sql.push_str(") ON CONFLICT (store) DO UPDATE SET version = excluded.version");
    client.batch_execute(&fill(&sql, schema)).await.map_err(|error| {
        let trouble = classify(Stage::Connect, error);
        Trouble { message: format!("the schema \"{schema}\" cannot be made: {}", trouble.message), ..trouble }
    })?;
    tracing::info!(schema, version = VERSION, operation = %Operation::Connect, "made or upgraded coord's schema");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_own_version_is_used() {
        assert!(check_version("coord", Some(VERSION)).is_ok());
        for (version, says) in
            [(Some(VERSION + 1), "newer coord"), (Some(VERSION - 1), "may upgrade it"), (None, "not coord's")]
        {
            let trouble = check_version("coord", version).unwrap_err();
            assert_eq!(trouble.kind, ErrorKind::Config);
            assert!(trouble.message.contains(says), "{}", trouble.message);
        }
    }

    #[test]
    fn every_statement_names_its_schema() {
        for sql in [
            include_str!("../sql/schema.sql"),
            include_str!("../sql/txn.sql"),
            include_str!("../sql/snapshot.sql"),
            include_str!("../sql/keys.sql"),
        ] {
            let filled = fill(sql, "s");
            assert!(!filled.contains('{') && filled.contains("\"s\".entry"));
            // A table without the name of its schema would be looked for wherever the role's search path leads.
            for (at, _) in filled.match_indices(" entry") {
                assert!(filled[..at].ends_with("--"), "{}", &filled[at..at + 40]);
            }
        }
    }
}
