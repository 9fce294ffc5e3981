// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"time"

	"github.com/segmentio/kafka-go"
)

func kafkaGoConsume(job *Job, outcome *Outcome) {
	dialer := &kafka.Dialer{ClientID: job.ClientID, Timeout: 10 * time.Second}
	reader := kafka.NewReader(kafka.ReaderConfig{Brokers: []string{job.Bootstrap}, GroupID: job.ClientID,
		Topic: job.Topic, StartOffset: kafka.FirstOffset, MinBytes: 1, MaxBytes: job.FetchBytes, Dialer: dialer,
		MaxWait: time.Second, CommitInterval: time.Second,
		ErrorLogger: kafka.LoggerFunc(func(text string, args ...any) { outcome.fail(fmt.Sprintf(text, args...)) })})
	ctx, stop := context.WithTimeout(context.Background(), job.left(outcome))
	defer stop()
	for outcome.count() < job.Count {
		message, err := reader.ReadMessage(ctx)
		if err != nil {
			if ctx.Err() == nil {
				outcome.fail(err.Error())
				continue
			}
			break
		}
		outcome.add(string(message.Value))
	}
	_ = reader.Close()
}

func kafkaGoProduce(job *Job, outcome *Outcome) {
	writer := &kafka.Writer{Addr: kafka.TCP(job.Bootstrap), Topic: job.Topic, RequiredAcks: kafka.RequiredAcks(job.Acks),
		BatchSize: job.Batch, BatchBytes: 1 << 20, BatchTimeout: 20 * time.Millisecond, Async: true, WriteTimeout: 40 * time.Second,
		Transport: &kafka.Transport{ClientID: job.ClientID},
		Completion: func(messages []kafka.Message, err error) {
			if err != nil {
				outcome.fail(err.Error())
				return
			}
			for _, message := range messages {
				outcome.add(string(message.Value[:8]))
			}
		},
		ErrorLogger: kafka.LoggerFunc(func(text string, args ...any) { outcome.fail(fmt.Sprintf(text, args...)) })}
	messages := []kafka.Message{}
	for _, number := range job.numbers() {
		messages = append(messages, kafka.Message{Value: job.value(number)})
	}
	if err := writer.WriteMessages(context.Background(), messages...); err != nil {
		outcome.fail(err.Error())
	}
	closed := make(chan struct{})
	go func() {
		_ = writer.Close()
		close(closed)
	}()
	select {
	case <-closed:
	case <-time.After(job.left(outcome)):
	}
}
