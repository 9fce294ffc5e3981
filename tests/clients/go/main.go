// SPDX-License-Identifier: Apache-2.0

// Command clients runs one of Go's Kafka clients as a job says, and prints what happened as one line of JSON.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"
)

// Job is what is to be done, as the suite describes it.
type Job struct {
	Client     string  `json:"client"`
	Role       string  `json:"role"`
	Bootstrap  string  `json:"bootstrap"`
	Topic      string  `json:"topic"`
	ClientID   string  `json:"client_id"`
	Count      int     `json:"count"`       // records to read or to write
	Size       int     `json:"size"`        // bytes of a value
	Batch      int     `json:"batch"`       // records of a batch that is written
	FetchBytes int     `json:"fetch_bytes"` // of a partition in an answer
	Acks       int     `json:"acks"`
	Seconds    float64 `json:"seconds"`   // until it gives up
	Producers  int     `json:"producers"` // that write it together, each over a connection of its own
	Reads      string  `json:"reads"`     // a topic that a group's member reads beside a producer
	first      int     // the first record of one of them
}

// Outcome counts records by when they came or were acknowledged, and keeps what went wrong.
type Outcome struct {
	mu       sync.Mutex
	begin    time.Time
	seen     map[string]bool
	Records  int         `json:"records"`
	Distinct int         `json:"distinct"`
	Arrivals map[int]int `json:"arrivals"` // records by hundredths of a second since the start
	Errors   []string    `json:"errors"`

	Heartbeats [][2]float64 `json:"heartbeats"` // when they were sent and answered, in seconds since the start
}

func (o *Outcome) add(value string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.Records++
	if !o.seen[value] {
		o.seen[value] = true
		o.Distinct++
	}
	o.Arrivals[int(time.Since(o.begin).Milliseconds()/10)]++
}

func (o *Outcome) count() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.Distinct
}

func (o *Outcome) fail(text string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.Errors = append(o.Errors, text)
}

// numbers returns those of the records that one producer writes.
func (j *Job) numbers() []int {
	found := []int{}
	for number := j.first; number < j.Count; number += j.Producers {
		found = append(found, number)
	}
	return found
}

// transactions calls back with the values of each, and whether to commit it: all but every second one.
func (j *Job) transactions(do func(values [][]byte, commit bool)) {
	for first := 0; first < j.Count; first += j.Batch {
		values := [][]byte{}
		for number := first; number < min(j.Count, first+j.Batch); number++ {
			values = append(values, j.value(number))
		}
		do(values, first/j.Batch%2 == 0)
	}
}

// committed notes the records of a transaction that has ended, if it was to be committed.
func (o *Outcome) committed(values [][]byte, commit bool, err error) {
	if err != nil {
		o.fail(err.Error())
	} else if commit {
		for _, value := range values {
			o.add(string(value[:8]))
		}
	}
}

func (j *Job) value(number int) []byte {
	text := fmt.Sprintf("%08d", number)
	return []byte(text + strings.Repeat("x", j.Size-len(text)))
}

func (j *Job) left(o *Outcome) time.Duration {
	return time.Duration(j.Seconds*float64(time.Second)) - time.Since(o.begin)
}

func main() {
	var job Job
	if err := json.Unmarshal([]byte(os.Args[1]), &job); err != nil {
		panic(err)
	}
	outcome := &Outcome{begin: time.Now(), seen: map[string]bool{}, Arrivals: map[int]int{}, Errors: []string{}}
	runs := map[string]func(*Job, *Outcome){
		"franz-go consume": franzConsume, "franz-go produce": franzProduce, "franz-go share": franzShare,
		"franz-go transact": franzTransact, "sarama transact": saramaTransact,
		"sarama consume": saramaConsume, "sarama produce": saramaProduce,
		"kafka-go consume": kafkaGoConsume, "kafka-go produce": kafkaGoProduce,
	}
	var running sync.WaitGroup
	for job.first = range job.Producers {
		one := job
		running.Go(func() { runs[one.Client+" "+one.Role](&one, outcome) })
	}
	running.Wait()
	outcome.mu.Lock()
	line, _ := json.Marshal(outcome)
	fmt.Println(string(line))
}
