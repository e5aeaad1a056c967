//! Which tasks somebody wants.

/// Which tasks [`claim_next`](crate::board::ExtendedBoard::claim_next) may take, by their labels.
///
/// ```
/// use coord_core::board::Filter;
///
/// let filter = Filter::any().with_label("linux").with_any_of(["gpu", "tpu"]).without_label("flaky");
/// assert!(filter.matches(&["linux".into(), "gpu".into()]));
/// assert!(!filter.matches(&["linux".into()]));
/// assert!(!filter.matches(&["linux".into(), "gpu".into(), "flaky".into()]));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Filter {
    /// The task must have all of these labels.
    pub labels: Vec<String>,
    /// Of these, if there are any, the task must have at least one.
    pub any_of: Vec<String>,
    /// The task must have none of these.
    pub none_of: Vec<String>,
}

impl Filter {
    /// Every task.
    #[must_use]
    pub fn any() -> Self {
        Filter::default()
    }

    /// The task must also have this label.
    #[must_use]
    pub fn with_label(mut self, label: impl Into<String>) -> Self {
        self.labels.push(label.into());
        self
    }

    /// The task must have one of these labels, or of those that were given so before.
    #[must_use]
    pub fn with_any_of(mut self, labels: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.any_of.extend(labels.into_iter().map(Into::into));
        self
    }

    /// The task must not have this label.
    #[must_use]
    pub fn without_label(mut self, label: impl Into<String>) -> Self {
        self.none_of.push(label.into());
        self
    }

    /// Whether every task passes.
    #[must_use]
    pub fn is_any(&self) -> bool {
        self.labels.is_empty() && self.any_of.is_empty() && self.none_of.is_empty()
    }

    /// Whether a task with these labels passes.
    #[must_use]
    pub fn matches(&self, labels: &[String]) -> bool {
        self.labels.iter().all(|label| labels.contains(label))
            && (self.any_of.is_empty() || self.any_of.iter().any(|label| labels.contains(label)))
            && !self.none_of.iter().any(|label| labels.contains(label))
    }
}
