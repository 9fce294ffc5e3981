//! Runs rskafka as a job says, and prints what happened as one line of JSON. The job is as main.go's.
use std::collections::{BTreeMap, HashSet};
use std::time::{Duration, Instant};

use rskafka::client::partition::{Compression, PartitionClient, UnknownTopicHandling};
use rskafka::client::ClientBuilder;
use rskafka::record::Record;
use serde_json::{json, Value};

const MAX_WAIT_MS: i32 = 500;

struct Outcome {
    begin: Instant,
    records: usize,
    seen: HashSet<String>,
    arrivals: BTreeMap<u128, usize>,
    errors: Vec<String>,
}

impl Outcome {
    fn add(&mut self, value: &str) {
        self.records += 1;
        self.seen.insert(value[..8].to_string());
        *self.arrivals.entry(self.begin.elapsed().as_millis() / 10).or_default() += 1;
    }
}

async fn partition(job: &Value) -> PartitionClient {
    let text = |name: &str| job[name].as_str().unwrap().to_string();
    let client = ClientBuilder::new(vec![text("bootstrap")]).client_id(text("client_id")).build().await.unwrap();
    client.partition_client(text("topic"), 0, UnknownTopicHandling::Retry).await.unwrap()
}

async fn consume(job: &Value, outcome: &mut Outcome) {
    let (count, bytes) = (job["count"].as_u64().unwrap() as usize, job["fetch_bytes"].as_i64().unwrap() as i32);
    let partition = partition(job).await;
    let mut offset = 0;
    while outcome.seen.len() < count {
        match partition.fetch_records(offset, 1..bytes, MAX_WAIT_MS).await {
            Ok((records, _)) => {
                for one in records.into_iter().filter(|one| one.offset >= offset).collect::<Vec<_>>() {
                    offset = one.offset + 1;
                    outcome.add(&String::from_utf8(one.record.value.unwrap()).unwrap());
                }
            }
            Err(error) => outcome.errors.push(error.to_string()),
        }
    }
}

/// One of the job's producers: what it writes, in requests one after the other, and what became of them.
async fn produce(job: Value, first: usize) -> (Vec<(Instant, String)>, Vec<String>) {
    let number = |name: &str| job[name].as_u64().unwrap() as usize;
    let partition = partition(&job).await;
    let values: Vec<String> = (first..number("count"))
        .step_by(number("producers"))
        .map(|one| format!("{one:08}{}", "x".repeat(number("size") - 8)))
        .collect();
    let (mut done, mut errors) = (vec![], vec![]);
    for batch in values.chunks(number("batch")) {
        let records = batch.iter().map(|value| Record {
            key: None,
            value: Some(value.clone().into_bytes()),
            headers: BTreeMap::new(),
            timestamp: chrono::Utc::now(),
        });
        match partition.produce(records.collect(), Compression::NoCompression).await {
            Ok(_) => done.extend(batch.iter().map(|value| (Instant::now(), value.clone()))),
            Err(error) => errors.push(error.to_string()),
        }
    }
    (done, errors)
}

#[tokio::main]
async fn main() {
    let job: Value = serde_json::from_str(&std::env::args().nth(1).unwrap()).unwrap();
    let begin = Instant::now();
    let mut outcome =
        Outcome { begin, records: 0, seen: HashSet::new(), arrivals: BTreeMap::new(), errors: vec![] };
    let left = Duration::from_secs_f64(job["seconds"].as_f64().unwrap());
    if job["role"] == "consume" {
        let _ = tokio::time::timeout(left, consume(&job, &mut outcome)).await;
    } else {
        let producers = job["producers"].as_u64().unwrap() as usize;
        let together: Vec<_> = (0..producers).map(|first| tokio::spawn(produce(job.clone(), first))).collect();
        for one in together {
            let (done, errors) = one.await.unwrap();
            outcome.errors.extend(errors);
            for (at, value) in done {
                outcome.records += 1;
                outcome.seen.insert(value[..8].to_string());
                *outcome.arrivals.entry((at - begin).as_millis() / 10).or_default() += 1;
            }
        }
    }
    println!(
        "{}",
        json!({"records": outcome.records, "distinct": outcome.seen.len(), "errors": outcome.errors,
               "arrivals": outcome.arrivals.iter().map(|(at, some)| (at.to_string(), some)).collect::<BTreeMap<_, _>>()})
    );
}
