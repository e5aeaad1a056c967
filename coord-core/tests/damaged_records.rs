//! Records that were damaged in the store: whatever the bytes are, no verb panics, and none writes over what it cannot read.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::Duration;

use coord_core::board::{
    AgentId, Board, BoardAdapter, BoardError, BoardOptions, Claim, ClaimRequest, Dep, ExtendedBoard, Filter,
    Outcome, TaskId, TaskSpec,
};
use coord_core::{Backend, Bytes, Entry, Key, KeyRange, KeySet, Mutation, Namespace, Prefix, Token, Txn};
use coord_memory::{MemoryBackend, MemoryStore};
use rand::rngs::StdRng;
use rand::{Rng as _, RngExt as _, SeedableRng as _};

const TTL: Duration = Duration::from_secs(60);

fn id(name: &str) -> TaskId {
    TaskId::new(name).unwrap()
}

fn agent() -> AgentId {
    AgentId::new("worker").unwrap()
}

struct Scene {
    backend: MemoryBackend,
    board: BoardAdapter<MemoryBackend>,
    held: Claim,
}

impl Scene {
    /// A board with an open task that waits for a done one, a claimed one, a failed one, and one for itself.
    async fn new() -> Scene {
        let backend = MemoryStore::new().open(&Namespace::default());
        let board = BoardAdapter::open(backend.clone(), BoardOptions::default()).await.unwrap();
        for (name, deps) in
            [("done", &[][..]), ("held", &[]), ("failed", &[]), ("open", &["done"]), ("free", &[])]
        {
            let spec = TaskSpec::new(id(name)).title(name).label("l").deps(deps.iter().map(|dep| id(dep)));
            board.add(spec.payload(vec![1, 2, 3])).await.unwrap();
        }
        let claim = async |name| board.claim(&id(name), &agent(), ClaimRequest::for_ttl(TTL)).await.unwrap();
        let (done, failed, held) = (claim("done").await, claim("failed").await, claim("held").await);
        board.complete(&id("done"), &done.lease.token, Outcome::new("good").unwrap()).await.unwrap();
        board.fail(&id("failed"), &failed.lease.token, Outcome::new("bad").unwrap()).await.unwrap();
        Scene { backend, board, held }
    }

    async fn keys(&self) -> Vec<Key> {
        self.backend.keys(&KeyRange::new(Prefix::all(), 10_000).unwrap()).await.unwrap()
    }

    async fn entry(&self, key: &Key) -> Entry {
        let snapshot = self.backend.snapshot(&KeySet::new([key.clone()]).unwrap()).await.unwrap();
        snapshot.require(key).unwrap().clone()
    }

    async fn put(&self, key: &Key, value: Bytes) {
        let _ = self.backend.txn(&Txn::new([], [Mutation::put(key.clone(), value)]).unwrap()).await.unwrap();
    }

    /// Every verb on every task. Returns how many said that a record is malformed.
    async fn every_verb(&self) -> usize {
        let mut malformed = 0;
        macro_rules! call {
            ($call:expr) => {
                malformed += usize::from(matches!($call.await, Err(BoardError::Malformed { .. })))
            };
        }
        let (board, token, worker) = (&self.board, &self.held.lease.token, agent());
        let outcome = || Outcome::new("again").unwrap();
        for name in ["done", "held", "failed", "open", "free", "absent"].map(id) {
            call!(board.get(&name));
            call!(board.renew(&name, token, TTL));
            call!(board.claim(&name, &worker, ClaimRequest::for_ttl(TTL)));
            call!(board.complete(&name, &Token::mint(), outcome()));
            call!(board.release(&name, token));
            call!(board.fail(&name, token, outcome()));
            call!(board.revoke(&name, 1));
            call!(board.set_deps(&name, &Dep::all([id("done")]), None));
            call!(board.reopen(&name));
            call!(board.cancel(&name));
            call!(board.add(TaskSpec::new(name.clone()).dep(id("free"))));
        }
        call!(board.list());
        call!(board.claim_next(&worker, &Filter::any(), TTL));
        call!(board.remove(&id("open")));
        call!(board.remove(&id("free")));
        malformed
    }
}

/// The bytes of a record after an accident, and whether it is certain that they cannot be read.
fn damage(bytes: &[u8], rng: &mut StdRng) -> (Vec<u8>, bool) {
    let mut bytes = bytes.to_vec();
    match rng.random_range(0..8) {
        0 => {
            bytes.truncate(rng.random_range(0..bytes.len()));
            (bytes, true)
        }
        1 => {
            bytes.extend(std::iter::repeat_n(0, rng.random_range(1..4)));
            (bytes, true)
        }
        2 => {
            // The first byte is never that of a record.
            bytes = vec![0; rng.random_range(0..200)];
            rng.fill_bytes(&mut bytes);
            bytes.splice(..0, [b'{']);
            (bytes, true)
        }
        3 => {
            // A right envelope around anything.
            let end = bytes.len().min(6);
            rng.fill_bytes(&mut bytes[end..]);
            (bytes, false)
        }
        4..7 => {
            // Numbers as large as they can be.
            let place = rng.random_range(0..bytes.len());
            let large = [&[253][..], &[0xff; 8]].concat();
            bytes.splice(place..place + 1, large);
            (bytes, false)
        }
        _ => {
            for _ in 0..rng.random_range(1..4) {
                let place = rng.random_range(0..bytes.len());
                bytes[place] ^= 1 << rng.random_range(0..8);
            }
            (bytes, false)
        }
    }
}

#[tokio::test]
async fn whatever_the_bytes_are_no_verb_panics() {
    let (mut told, mut unread) = (0, 0);
    for seed in 0..1_000 {
        let mut rng = StdRng::seed_from_u64(seed);
        let scene = Scene::new().await;
        let keys = scene.keys().await;
        let key = &keys[rng.random_range(0..keys.len())];
        let value = scene.entry(key).await.value().cloned().unwrap();
        let (bytes, unreadable) = damage(&value, &mut rng);
        scene.put(key, bytes.clone().into()).await;
        let put = scene.entry(key).await;
        // A panic names the seed.
        let malformed = tokio::spawn(async move { (scene.every_verb().await, scene) }).await;
        let (malformed, scene) =
            malformed.unwrap_or_else(|error| panic!("seed {seed}: {key:?} = {bytes:?}: {error}"));
        // Edges are markers without content: of them only the key counts.
        if unreadable && malformed > 0 {
            unread += 1;
            assert_eq!(
                scene.entry(key).await,
                put,
                "seed {seed}: {key:?} could not be read, and was written over"
            );
        }
        told += usize::from(malformed > 0);
    }
    assert!(told > 500 && unread > 200, "{told} told, {unread} surely unreadable: too few to prove anything");
}
