//! The backends of this project. A new one is a file here, a line in the table, and a feature in `Cargo.toml`.

#[cfg(feature = "etcd")]
mod etcd;
#[cfg(feature = "memory")]
mod memory;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "redis")]
mod redis;
#[cfg(feature = "sqlite")]
mod sqlite;

use std::sync::Arc;

use crate::registry::Factory;

/// One backend, compiled in or not.
pub(crate) struct Builtin {
    /// The URL schemes that mean it.
    pub(crate) schemes: &'static [&'static str],
    /// The cargo feature that compiles it in.
    pub(crate) feature: &'static str,
    /// What opens it, if it is compiled in.
    pub(crate) factory: Option<fn() -> Arc<dyn Factory>>,
}

macro_rules! factory {
    ($feature:literal, $factory:path) => {{
        #[cfg(feature = $feature)]
        {
            Some(|| Arc::new($factory))
        }
        #[cfg(not(feature = $feature))]
        {
            None
        }
    }};
}

/// Every backend of this project, whether it is compiled in or not.
pub(crate) const ALL: &[Builtin] = &[
    Builtin { schemes: &["memory"], feature: "memory", factory: factory!("memory", memory::Memory) },
    Builtin { schemes: &["sqlite"], feature: "sqlite", factory: factory!("sqlite", sqlite::Sqlite) },
    Builtin {
        schemes: &["redis", "rediss", "redis+cluster", "rediss+cluster", "redis+sentinel", "rediss+sentinel"],
        feature: "redis",
        factory: factory!("redis", redis::Redis),
    },
    Builtin { schemes: &["etcd", "etcds"], feature: "etcd", factory: factory!("etcd", etcd::Etcd) },
    Builtin {
        schemes: &["postgres", "postgresql"],
        feature: "postgres",
        factory: factory!("postgres", postgres::Postgres),
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_readme_names_every_backend() {
        let readme = include_str!("../../README.md");
        for builtin in ALL {
            let rows = readme.lines().filter(|line| line.starts_with(&format!("| `{}:", builtin.schemes[0])));
            let row = rows.clone().next().unwrap_or_else(|| panic!("no row for {}:", builtin.schemes[0]));
            assert!(row.contains(&format!("| `{}`", builtin.feature)), "{row}");
        }
    }
}
