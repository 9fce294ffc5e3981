// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"time"

	"github.com/IBM/sarama"
)

type saramaGroup struct {
	job     *Job
	outcome *Outcome
	done    context.CancelFunc
}

func (g saramaGroup) Setup(sarama.ConsumerGroupSession) error   { return nil }
func (g saramaGroup) Cleanup(sarama.ConsumerGroupSession) error { return nil }

func (g saramaGroup) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for {
		select {
		case message, ok := <-claim.Messages():
			if !ok {
				return nil
			}
			g.outcome.add(string(message.Value))
			session.MarkMessage(message, "")
			if g.outcome.count() >= g.job.Count {
				g.done()
			}
		case <-session.Context().Done():
			return nil
		}
	}
}

func saramaConfig(job *Job) *sarama.Config {
	config := sarama.NewConfig()
	config.Version = sarama.V3_6_0_0
	config.ClientID = job.ClientID
	return config
}

func saramaConsume(job *Job, outcome *Outcome) {
	config := saramaConfig(job)
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	config.Consumer.Fetch.Default = int32(job.FetchBytes)
	config.Consumer.Return.Errors = true
	config.Consumer.IsolationLevel = sarama.ReadCommitted
	group, err := sarama.NewConsumerGroup([]string{job.Bootstrap}, job.ClientID, config)
	if err != nil {
		panic(err)
	}
	go func() {
		for e := range group.Errors() {
			outcome.fail(e.Error())
		}
	}()
	ctx, stop := context.WithTimeout(context.Background(), job.left(outcome))
	defer stop()
	for ctx.Err() == nil {
		if err := group.Consume(ctx, []string{job.Topic}, saramaGroup{job, outcome, stop}); err != nil {
			outcome.fail(err.Error())
		}
	}
	_ = group.Close()
}

// saramaJoin has a group's member over the same client, and so over the same connection, until it is ended.
func saramaJoin(job *Job, outcome *Outcome, client sarama.Client) func() {
	group, err := sarama.NewConsumerGroupFromClient(job.ClientID, client)
	if err != nil {
		panic(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan bool)
	go func() {
		for ctx.Err() == nil {
			if err := group.Consume(ctx, []string{job.Reads}, saramaGroup{job, outcome, stop}); err != nil {
				outcome.fail(err.Error())
			}
		}
		_ = group.Close()
		close(ended)
	}()
	time.Sleep(time.Second)
	return func() { stop(); <-ended }
}

func saramaProduce(job *Job, outcome *Outcome) {
	config := saramaConfig(job)
	config.Producer.RequiredAcks = sarama.RequiredAcks(job.Acks)
	config.Producer.Return.Successes = true
	config.Producer.Flush.Messages = job.Batch
	config.Producer.Flush.MaxMessages = job.Batch
	config.Producer.Flush.Frequency = 20 * time.Millisecond
	if job.Acks == -1 {
		config.Producer.Idempotent = true
		config.Net.MaxOpenRequests = 1
	}
	if job.Reads != "" {
		config.Producer.Timeout = 30 * time.Second // or long pauses are told, and heartbeats wait for these too
		config.Net.Proxy.Enable, config.Net.Proxy.Dialer = true, waits{outcome}
	}
	client, err := sarama.NewClient([]string{job.Bootstrap}, config)
	if err != nil {
		panic(err)
	}
	if job.Reads != "" {
		defer saramaJoin(job, outcome, client)()
	}
	producer, err := sarama.NewAsyncProducerFromClient(client)
	if err != nil {
		panic(err)
	}
	go func() {
		for _, number := range job.numbers() {
			producer.Input() <- &sarama.ProducerMessage{Topic: job.Topic, Value: sarama.ByteEncoder(job.value(number)),
				Metadata: number}
		}
		producer.AsyncClose()
	}()
	successes, errors := producer.Successes(), producer.Errors()
	give := time.After(job.left(outcome))
	for successes != nil || errors != nil {
		select {
		case message, ok := <-successes:
			if !ok {
				successes = nil
				continue
			}
			value, _ := message.Value.Encode()
			outcome.add(string(value[:8]))
		case e, ok := <-errors:
			if !ok {
				errors = nil
				continue
			}
			outcome.fail(e.Error())
		case <-give:
			return
		}
	}
}

func saramaTransact(job *Job, outcome *Outcome) {
	config := saramaConfig(job)
	config.Producer.RequiredAcks = sarama.WaitForAll
	config.Producer.Return.Successes = true
	config.Producer.Idempotent = true
	config.Producer.Transaction.ID = job.ClientID
	config.Net.MaxOpenRequests = 1
	producer, err := sarama.NewSyncProducer([]string{job.Bootstrap}, config)
	if err != nil {
		panic(err)
	}
	job.transactions(func(values [][]byte, commit bool) {
		if err := producer.BeginTxn(); err != nil {
			panic(err)
		}
		messages := []*sarama.ProducerMessage{}
		for _, value := range values {
			messages = append(messages, &sarama.ProducerMessage{Topic: job.Topic, Value: sarama.ByteEncoder(value)})
		}
		if err := producer.SendMessages(messages); err != nil {
			outcome.fail(err.Error())
		}
		end := map[bool]func() error{true: producer.CommitTxn, false: producer.AbortTxn}[commit]
		outcome.committed(values, commit, end())
	})
	_ = producer.Close()
}
