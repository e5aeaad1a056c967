//! The transactions of one process that wait to be written to one file.
//!
//! SQLite has one writer at a time and wakes whoever happens to look first, so the handles of a process do not compete for its lock. They
//! put their transactions in a queue, first in, first out, and whoever has the turn writes all that wait, each judged for itself, in one
//! transaction of SQLite: one wait for the disk for all of them.

use std::collections::{HashMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, Weak};

use coord_core::{BackendError, Namespace, Txn, TxnOutcome, limits};
use tokio::sync::{Semaphore, oneshot};

use crate::config::Durability;

/// What a job is answered with.
pub(crate) type Answer = Result<TxnOutcome, BackendError>;

/// The most transactions that are written at once. More would only make the first of them wait.
const BATCH_JOBS: usize = 64;
/// The most bytes that are written at once, if it is more than one transaction.
const BATCH_BYTES: usize = 2 * limits::TXN_BYTES;
/// The most mutations that are written at once, if it is more than one transaction.
const BATCH_MUTATIONS: usize = limits::TXN_MUTATIONS;

/// A transaction that waits.
#[derive(Debug)]
pub(crate) struct Job {
    number: u64,
    pub(crate) namespace: Namespace,
    pub(crate) txn: Txn,
    answer: oneshot::Sender<Answer>,
}

type Queues = HashMap<(PathBuf, Durability), Weak<Queue>>;

/// The waiting transactions of one file in this process.
#[derive(Debug)]
pub(crate) struct Queue {
    turn: Arc<Semaphore>,
    next: AtomicU64,
    jobs: Mutex<VecDeque<Job>>,
}

impl Queue {
    fn new() -> Self {
        Queue { turn: Arc::new(Semaphore::new(1)), next: AtomicU64::new(0), jobs: Mutex::default() }
    }

    /// The queue of a file, the same for all handles of this process that promise the same.
    pub(crate) fn of(path: &Path, durability: Durability) -> Arc<Queue> {
        static QUEUES: LazyLock<Mutex<Queues>> = LazyLock::new(Mutex::default);
        let name = (path.to_owned(), durability);
        let mut queues = QUEUES.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(queue) = queues.get(&name).and_then(Weak::upgrade) {
            return queue;
        }
        queues.retain(|_, queue| queue.strong_count() > 0);
        let queue = Arc::new(Queue::new());
        queues.insert(name, Arc::downgrade(&queue));
        queue
    }

    /// The right to write, first in, first out.
    pub(crate) fn turn(&self) -> &Arc<Semaphore> {
        &self.turn
    }

    /// Lets a transaction wait. The ticket brings its answer.
    pub(crate) fn join(self: &Arc<Self>, namespace: Namespace, txn: Txn) -> Ticket {
        let (answer, ticket) = oneshot::channel();
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.lock().push_back(Job { number, namespace, txn, answer });
        Ticket { queue: self.clone(), number, answer: ticket }
    }

    /// Takes the first ones off the queue, at least one if any waits.
    pub(crate) fn take_batch(&self) -> Vec<Job> {
        let mut jobs = self.lock();
        // Nobody waits for what was dropped: it must not happen at some later time.
        jobs.retain(|job| !job.answer.is_closed());
        let (mut bytes, mut mutations) = (0, 0);
        let mut batch = Vec::new();
        while let Some(job) = jobs.front() {
            bytes += job.txn.size();
            mutations += job.txn.mutations().len();
            let full = batch.len() == BATCH_JOBS || bytes > BATCH_BYTES || mutations > BATCH_MUTATIONS;
            if full && !batch.is_empty() {
                break;
            }
            batch.extend(jobs.pop_front());
        }
        batch
    }

    /// Puts back what was not written, in its old place.
    pub(crate) fn put_back(&self, batch: Vec<Job>) {
        let mut jobs = self.lock();
        for job in batch.into_iter().rev() {
            jobs.push_front(job);
        }
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Job>> {
        // Nothing panics while the lock is held.
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Answers a batch. Those that were not applied hear it first: they have to read again before they can try again, and if the one that was
/// applied always were the first to come back, it would win every time.
pub(crate) fn answer(batch: Vec<Job>, answers: Vec<Answer>) {
    let (applied, others): (Vec<_>, Vec<_>) =
        batch.into_iter().zip(answers).partition(|(_, answer)| matches!(answer, Ok(TxnOutcome::Applied)));
    for (job, answer) in others.into_iter().chain(applied) {
        // Nobody listens if the future was dropped.
        let _ = job.answer.send(answer);
    }
}

/// The place of a transaction in the queue. Whoever drops it leaves the queue.
#[derive(Debug)]
pub(crate) struct Ticket {
    queue: Arc<Queue>,
    number: u64,
    /// The answer, or an error if the thread that had the job is gone.
    pub(crate) answer: oneshot::Receiver<Answer>,
}

impl Ticket {
    /// Leaves the queue. Whether it was still there: then the transaction certainly does not happen.
    pub(crate) fn withdraw(&self) -> bool {
        let mut jobs = self.queue.lock();
        let place = jobs.iter().position(|job| job.number == self.number);
        place.and_then(|place| jobs.remove(place)).is_some()
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.withdraw();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use coord_core::{Key, Mutation};

    fn txn(bytes: usize) -> Txn {
        Txn::new([], [Mutation::put(Key::new("k").unwrap(), vec![0; bytes - 1])]).unwrap()
    }

    fn numbers(batch: &[Job]) -> Vec<u64> {
        batch.iter().map(|job| job.number).collect()
    }

    #[test]
    fn one_file_has_one_queue_as_long_as_it_is_used() {
        let (a, b) = (Path::new("/queue/a"), Path::new("/queue/b"));
        let first = Queue::of(a, Durability::Full);
        assert!(Arc::ptr_eq(&first, &Queue::of(a, Durability::Full)));
        assert!(!Arc::ptr_eq(&first, &Queue::of(b, Durability::Full)));
        assert!(!Arc::ptr_eq(&first, &Queue::of(a, Durability::Normal)));
        let weak = Arc::downgrade(&first);
        drop(first);
        assert!(weak.upgrade().is_none());
        assert_eq!(Queue::of(a, Durability::Full).turn().available_permits(), 1);
    }

    #[test]
    fn jobs_are_taken_in_order_and_put_back_in_their_place() {
        let queue = Arc::new(Queue::new());
        let tickets: Vec<Ticket> = (0..70).map(|_| queue.join(Namespace::default(), txn(10))).collect();
        let batch = queue.take_batch();
        assert_eq!(numbers(&batch), (0..64).collect::<Vec<_>>());
        queue.put_back(batch);
        assert!(tickets[1].withdraw() && !tickets[1].withdraw());
        assert_eq!(queue.take_batch().len(), 64);
        assert_eq!(numbers(&queue.take_batch()), (65..70).collect::<Vec<_>>());
        assert!(queue.take_batch().is_empty());
        assert!(!tickets[69].withdraw());
    }

    #[test]
    fn a_batch_is_bounded_and_has_at_least_one_job() {
        let queue = Arc::new(Queue::new());
        let large = limits::VALUE_BYTES;
        let tickets: Vec<Ticket> = (0..5).map(|_| queue.join(Namespace::default(), txn(large))).collect();
        assert_eq!(numbers(&queue.take_batch()), [0, 1, 2, 3]);
        assert_eq!(numbers(&queue.take_batch()), [4]);
        drop(tickets);
        let many = |n: usize| (0..n).map(|n| Mutation::put(Key::new(n.to_string()).unwrap(), ""));
        let join = |n| queue.join(Namespace::default(), Txn::new([], many(n)).unwrap());
        let tickets = [join(3_000), join(2_999), join(1), join(1)];
        assert_eq!([(); 3].map(|()| queue.take_batch().len()), [1, 2, 1]);
        drop(tickets);
        let ticket = queue.join(Namespace::default(), txn(10));
        drop(ticket);
        assert!(queue.take_batch().is_empty(), "a dropped ticket leaves the queue");
        let ticket = queue.join(Namespace::default(), txn(10));
        let batch = queue.take_batch();
        drop(ticket);
        queue.put_back(batch);
        assert!(queue.take_batch().is_empty(), "also if it was dropped in mid-try");
    }

    #[tokio::test]
    async fn the_applied_hear_it_last() {
        let queue = Arc::new(Queue::new());
        let mut first = queue.join(Namespace::default(), txn(10));
        let second = queue.join(Namespace::default(), txn(10));
        let batch = queue.take_batch();
        drop(second);
        answer(batch, vec![Ok(TxnOutcome::Applied), Ok(TxnOutcome::Rejected)]);
        assert!(first.answer.try_recv().unwrap().unwrap().is_applied());
    }
}
