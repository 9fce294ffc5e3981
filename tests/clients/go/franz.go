// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

type franzLog struct{ outcome *Outcome }

func (l franzLog) Level() kgo.LogLevel { return kgo.LogLevelWarn }

func (l franzLog) Log(level kgo.LogLevel, text string, pairs ...any) {
	l.outcome.fail(fmt.Sprint(level, " ", text, " ", pairs))
}

func franz(job *Job, outcome *Outcome, more ...kgo.Opt) *kgo.Client {
	options := append(more, kgo.SeedBrokers(job.Bootstrap), kgo.ClientID(job.ClientID),
		kgo.WithLogger(franzLog{outcome}))
	client, err := kgo.NewClient(options...)
	if err != nil {
		panic(err)
	}
	return client
}

func franzRead(job *Job, outcome *Outcome, client *kgo.Client) {
	ctx, stop := context.WithTimeout(context.Background(), job.left(outcome))
	defer stop()
	for outcome.count() < job.Count && ctx.Err() == nil {
		fetches := client.PollFetches(ctx)
		for _, e := range fetches.Errors() {
			if ctx.Err() == nil {
				outcome.fail(e.Err.Error())
			}
		}
		fetches.EachRecord(func(r *kgo.Record) { outcome.add(string(r.Value)) })
	}
	client.Close()
}

func franzConsume(job *Job, outcome *Outcome) {
	franzRead(job, outcome, franz(job, outcome, kgo.ConsumerGroup(job.ClientID), kgo.ConsumeTopics(job.Topic),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchMaxBytes(int32(job.FetchBytes)),
		kgo.FetchMaxPartitionBytes(int32(job.FetchBytes))))
}

func franzShare(job *Job, outcome *Outcome) {
	franzRead(job, outcome, franz(job, outcome, kgo.ShareGroup(job.ClientID), kgo.ConsumeTopics(job.Topic)))
}

func franzProduce(job *Job, outcome *Outcome) {
	acks := map[int]kgo.Acks{-1: kgo.AllISRAcks(), 0: kgo.NoAck(), 1: kgo.LeaderAck()}[job.Acks]
	options := []kgo.Opt{kgo.RequiredAcks(acks), kgo.ProducerBatchMaxBytes(int32(job.Batch*(job.Size+10) + 100)),
		kgo.MaxBufferedRecords(job.Count + 1), kgo.ProducerBatchCompression(kgo.NoCompression()),
		kgo.ProducerLinger(20 * time.Millisecond)}
	if job.Acks != -1 {
		options = append(options, kgo.DisableIdempotentWrite())
	}
	client := franz(job, outcome, options...)
	ctx, stop := context.WithTimeout(context.Background(), job.left(outcome))
	defer stop()
	for _, number := range job.numbers() {
		client.Produce(ctx, &kgo.Record{Topic: job.Topic, Value: job.value(number)}, func(r *kgo.Record, err error) {
			if err != nil {
				outcome.fail(err.Error())
			} else {
				outcome.add(string(r.Value[:8]))
			}
		})
	}
	client.Flush(ctx)
	client.Close()
}

func franzTransact(job *Job, outcome *Outcome) {
	client := franz(job, outcome, kgo.TransactionalID(job.ClientID), kgo.DefaultProduceTopic(job.Topic))
	ctx, stop := context.WithTimeout(context.Background(), job.left(outcome))
	defer stop()
	job.transactions(func(values [][]byte, commit bool) {
		if err := client.BeginTransaction(); err != nil {
			panic(err)
		}
		records := []*kgo.Record{}
		for _, value := range values {
			records = append(records, &kgo.Record{Value: value})
		}
		if err := client.ProduceSync(ctx, records...).FirstErr(); err != nil {
			outcome.fail(err.Error())
		}
		outcome.committed(values, commit, client.EndTransaction(ctx, kgo.TransactionEndTry(commit)))
	})
	client.Close()
}
