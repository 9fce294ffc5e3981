// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/binary"
	"net"
	"sync"
	"time"
)

const heartbeatKey = 12

// waits sees what sarama sends and gets over its connections, and notes how long each Heartbeat waits for its answer.
type waits struct {
	outcome *Outcome
}

// Dial opens a connection that is watched.
func (w waits) Dial(network, address string) (net.Conn, error) {
	connection, err := net.Dial(network, address)
	return &watched{Conn: connection, outcome: w.outcome}, err
}

type request struct {
	key  uint16
	sent float64
}

type watched struct {
	net.Conn
	outcome *Outcome
	mu      sync.Mutex
	waiting []request
	prefix  []byte // of the answer that comes
	left    int    // bytes of it that are still to come
}

// Write takes one whole request, as sarama writes them.
func (w *watched) Write(data []byte) (int, error) {
	w.mu.Lock()
	w.waiting = append(w.waiting, request{binary.BigEndian.Uint16(data[4:]), w.outcome.seconds()})
	w.mu.Unlock()
	return w.Conn.Write(data)
}

func (w *watched) Read(into []byte) (int, error) {
	n, err := w.Conn.Read(into)
	for data := into[:n]; len(data) > 0; {
		if w.left == 0 {
			w.prefix, data = append(w.prefix, data[0]), data[1:]
			if len(w.prefix) == 4 {
				w.left, w.prefix = int(binary.BigEndian.Uint32(w.prefix)), nil
			}
			continue
		}
		step := min(w.left, len(data))
		data, w.left = data[step:], w.left-step
		if w.left == 0 {
			w.answered()
		}
	}
	return n, err
}

func (w *watched) answered() {
	w.mu.Lock()
	first := w.waiting[0]
	w.waiting = w.waiting[1:]
	w.mu.Unlock()
	if first.key == heartbeatKey {
		w.outcome.heartbeat(first.sent)
	}
}

func (o *Outcome) seconds() float64 {
	return time.Since(o.begin).Seconds()
}

func (o *Outcome) heartbeat(sent float64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.Heartbeats = append(o.Heartbeats, [2]float64{sent, o.seconds()})
}
