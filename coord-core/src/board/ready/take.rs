//! Finding a task that can be claimed.

use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

use super::super::BoardError;
use super::super::adapter::BoardAdapter;
use super::super::claim::{Found, Hint};
use super::super::record::malformed;
use super::super::task::{AgentId, Claim, ClaimRequest, Filter, TaskId};
use super::entry::{self, DUE, Entry, READY, TODO, read_labels};
use super::examine::{Examined, Item};
use crate::backend::Backend;
use crate::cas::check_ttl;
use crate::clock::Timestamp;
use crate::key::Key;
use crate::snapshot::{KeyRange, KeySet};
use crate::token;

/// How many entries of `todo/`, and of what is due, one call works off.
const WORKED_OFF: usize = 64;
/// How many of them are listed, to begin at a random one.
const LISTED: usize = 2 * WORKED_OFF;
/// How many of the earliest due ones are looked at first: mostly none is due yet.
const PEEKED: usize = 4;
/// How many ready tasks are looked at at a time.
const CANDIDATES: usize = 64;
/// After so many collisions, a task of a lower priority is taken rather than to collide again.
const COLLISIONS: u32 = 3;
/// How often all ready tasks are looked through again because others took what was seen.
const ROUNDS: u32 = 16;

/// One call that looks for tasks.
struct Search<'a, B> {
    board: &'a BoardAdapter<B>,
    agent: &'a AgentId,
    filter: &'a Filter,
    request: ClaimRequest,
    wanted: usize,
    given: Vec<Claim>,
    malformed: Option<BoardError>,
    /// Whether more was left to be examined than one round does, and whether that round did anything.
    more: bool,
    worked: bool,
    random: Option<StdRng>,
}

/// How a look through the ready tasks ended.
enum Pass {
    /// As many were found as were wanted, or there are no more.
    Over,
    /// Others took what was seen, and nothing else was found.
    Contended,
    /// Something is due that has to be seen to first.
    DueFirst,
}

impl<B: Backend> BoardAdapter<B> {
    pub(in super::super) async fn claim_ready(
        &self,
        agent: &AgentId,
        filter: &Filter,
        ttl: Duration,
        wanted: usize,
    ) -> Result<Vec<Claim>, BoardError> {
        agent.validate()?;
        check_ttl(ttl)?;
        let mut search = Search {
            board: self,
            agent,
            filter,
            request: ClaimRequest::for_ttl(ttl),
            wanted,
            given: Vec::new(),
            malformed: None,
            more: false,
            worked: false,
            random: None,
        };
        let ended = search.run().await;
        match (ended, search.malformed) {
            // What has been claimed is not lost by what went wrong afterwards.
            _ if !search.given.is_empty() => Ok(search.given),
            (Err(error), _) | (Ok(()), Some(error)) => Err(error),
            (Ok(()), None) => Ok(Vec::new()),
        }
    }

    /// The first entries of the index with this prefix, after one of them.
    pub(super) async fn entries(
        &self,
        prefix: &str,
        after: Option<&Key>,
        limit: usize,
    ) -> Result<Vec<Key>, BoardError> {
        let mut range = KeyRange::new(entry::prefix(prefix), limit)?;
        if let Some(after) = after {
            range = range.start_after(after.clone());
        }
        Ok(self.backend().keys(&range).await?)
    }
}

impl<B: Backend> BoardAdapter<B> {
    /// Whether there is any entry with this prefix.
    pub(in super::super) async fn has_entry(&self, prefix: &str) -> Result<bool, BoardError> {
        Ok(!self.entries(prefix, None, 1).await?.is_empty())
    }

    /// Examines some of what must be.
    pub(in super::super) async fn examine_some(&self) -> Result<(), BoardError> {
        let listed = self.entries(TODO, None, WORKED_OFF).await?;
        let ids: Vec<TaskId> = listed.iter().filter_map(Entry::of).map(|entry| entry.id().clone()).collect();
        self.examine(&ids, usize::MAX).await.map(|_| ())
    }

    /// When the first task is due. What is no entry counts as due ever since: only who looks for tasks can tell what it hides.
    pub(in super::super) async fn first_due(&self) -> Result<Option<Timestamp>, BoardError> {
        let listed = self.entries(DUE, None, 1).await?;
        Ok(listed.first().map(|key| due_at(key).unwrap_or(Timestamp::EPOCH)))
    }
}

impl<B: Backend> Search<'_, B> {
    fn enough(&self) -> bool {
        self.given.len() >= self.wanted
    }

    fn random(&mut self) -> &mut StdRng {
        self.random.get_or_insert_with(|| StdRng::seed_from_u64(token::seed()))
    }

    fn note(&mut self, examined: Examined) {
        if examined.malformed.is_some() {
            self.malformed = examined.malformed;
        }
        self.worked |= examined.worked;
        // Each of these has left a marker of its own.
        self.more |= !examined.skipped.is_empty();
    }

    fn not_an_entry(&mut self, key: &Key) {
        self.malformed = Some(malformed(key, "the key is no entry of the index"));
    }

    async fn run(&mut self) -> Result<(), BoardError> {
        if self.wanted == 0 {
            return Ok(());
        }
        loop {
            (self.more, self.worked) = (false, false);
            self.round().await?;
            // Nothing is only said to be ready if nothing was left to be examined.
            if !(self.given.is_empty() && self.more && self.worked) {
                return Ok(());
            }
        }
    }

    async fn round(&mut self) -> Result<(), BoardError> {
        let board = self.board;
        let (todo, mut due, mut ready) = tokio::try_join!(
            board.entries(TODO, None, LISTED),
            board.entries(DUE, None, PEEKED),
            board.entries(READY, None, CANDIDATES),
        )?;
        let examined = !todo.is_empty();
        if examined {
            self.work_off_todo(todo).await?;
            due = board.entries(DUE, None, PEEKED).await?;
        }
        // What is due is mostly seen by the snapshot of the first candidate, which tells the time as well.
        let mut due = (!due.is_empty()).then_some(due);
        let first = due.take_if(|_| examined || ready.is_empty());
        if let Some(seen) = first {
            self.work_off_due(seen).await?;
        }
        if self.worked {
            ready = board.entries(READY, None, CANDIDATES).await?;
        }
        for _ in 0..ROUNDS {
            let first_due = due.as_ref().and_then(|due| due.iter().find_map(due_at));
            match self.pass(ready, first_due).await? {
                Pass::Over => return Ok(()),
                Pass::Contended => {}
                Pass::DueFirst => {
                    if let Some(seen) = due.take() {
                        self.work_off_due(seen).await?;
                    }
                }
            }
            ready = board.entries(READY, None, CANDIDATES).await?;
        }
        Err(BoardError::TxnConflict { attempts: ROUNDS })
    }

    /// Goes on listing by chance, so that no number of bad records at the beginning keeps the others out of sight, and picks some from
    /// a random one on.
    async fn some_of(&mut self, prefix: &str, mut listed: Vec<Key>) -> Result<Vec<Key>, BoardError> {
        self.more |= listed.len() == LISTED;
        while listed.len() == LISTED && self.random().random_bool(0.5) {
            let next = self.board.entries(prefix, listed.last(), LISTED).await?;
            if next.is_empty() {
                break;
            }
            listed = next;
        }
        if listed.len() > WORKED_OFF {
            self.more = true;
            let start = self.random().random_range(0..listed.len());
            listed.rotate_left(start);
            listed.truncate(WORKED_OFF);
        }
        Ok(listed)
    }

    async fn work_off_todo(&mut self, listed: Vec<Key>) -> Result<(), BoardError> {
        let mut ids: Vec<TaskId> = Vec::new();
        for key in self.some_of(TODO, listed).await? {
            match Entry::of(&key) {
                Some(Entry::Todo { id }) => ids.push(id),
                _ => self.not_an_entry(&key),
            }
        }
        let examined = self.board.examine(&ids, usize::MAX).await?;
        self.note(examined);
        Ok(())
    }

    async fn work_off_due(&mut self, mut seen: Vec<Key>) -> Result<(), BoardError> {
        let snapshot = self.board.backend().snapshot(&KeySet::empty()).await?;
        let now = self.board.view(&snapshot).now();
        let has_come = |key: &Key| due_at(key).is_none_or(|time| time <= now);
        if seen.len() == PEEKED && seen.iter().all(has_come) {
            seen = self.board.entries(DUE, None, LISTED).await?;
            seen = self.some_of(DUE, seen).await?;
        }
        let mut items = Vec::new();
        for key in seen.into_iter().filter(has_come) {
            match Item::of(key.clone()) {
                Some(item) => items.push(item),
                None => self.not_an_entry(&key),
            }
        }
        let examined = self.board.replace(items).await?;
        self.note(examined);
        Ok(())
    }

    /// Looks through the ready tasks, page by page, and claims.
    async fn pass(&mut self, mut page: Vec<Key>, first_due: Option<Timestamp>) -> Result<Pass, BoardError> {
        let mut contended = false;
        loop {
            let last = (page.len() == CANDIDATES).then(|| page.last().cloned()).flatten();
            let mut candidates = self.matching(page).await?;
            let mut collisions = 0;
            while !candidates.is_empty() && !self.enough() {
                let place = self.next_place(&candidates, collisions);
                let key = candidates.remove(place);
                let Some(item) = Item::of(key.clone()) else {
                    self.not_an_entry(&key);
                    continue;
                };
                let hint = Hint { entry: &key, filter: self.filter, first_due };
                let found = self.board.claim_hinted(item.entry.id(), self.agent, &self.request, hint).await;
                match found {
                    Ok(Found::Given(claim)) => self.given.push(*claim),
                    Ok(Found::Gone) | Err(BoardError::TxnConflict { .. }) => {
                        contended = true;
                        collisions += 1;
                    }
                    Ok(Found::Unwanted) => {}
                    // It has ended, and others may have waited for that.
                    Ok(Found::Failed | Found::Skipped) => (self.more, self.worked) = (true, true),
                    Ok(Found::DueFirst) => return Ok(Pass::DueFirst),
                    // The entry is stale.
                    Err(
                        BoardError::NotFound { .. }
                        | BoardError::Terminal { .. }
                        | BoardError::Taken { .. }
                        | BoardError::NotYet { .. }
                        | BoardError::Blocked { .. },
                    ) => {
                        let examined = self.board.replace(vec![item]).await?;
                        self.note(examined);
                    }
                    Err(error @ BoardError::Malformed { .. }) => self.malformed = Some(error),
                    Err(error) => return Err(error),
                }
            }
            if self.enough() {
                return Ok(Pass::Over);
            }
            let Some(last) = last else { break };
            page = self.board.entries(READY, Some(&last), CANDIDATES).await?;
        }
        Ok(if contended && self.given.is_empty() { Pass::Contended } else { Pass::Over })
    }

    /// The first one, as long as nobody is in the way. Then contenders spread, over the highest priority first.
    fn next_place(&mut self, candidates: &[Key], collisions: u32) -> usize {
        if collisions == 0 {
            return 0;
        }
        let rank = |key: &Key| key.as_bytes().get(..READY.len() + 8).map(<[u8]>::to_vec);
        let first = candidates.first().and_then(rank);
        let most = match collisions {
            ..COLLISIONS => candidates.iter().take_while(|key| rank(key) == first).count(),
            _ => candidates.len(),
        };
        self.random().random_range(0..most.max(1))
    }

    /// Those of which the labels pass, or cannot be read.
    async fn matching(&self, page: Vec<Key>) -> Result<Vec<Key>, BoardError> {
        if page.is_empty() || self.filter.is_any() {
            return Ok(page);
        }
        let snapshot = self.board.backend().snapshot(&KeySet::new(page.iter().cloned())?).await?;
        let passes = |key: &Key| {
            let value = snapshot.get(key).and_then(|entry| entry.value());
            value.is_some_and(|value| read_labels(value).is_none_or(|labels| self.filter.matches(&labels)))
        };
        Ok(page.into_iter().filter(passes).collect())
    }
}

fn due_at(key: &Key) -> Option<Timestamp> {
    match Entry::of(key) {
        Some(Entry::Due { time, .. }) => Some(time),
        _ => None,
    }
}
