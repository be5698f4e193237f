package control

import "time"

// This file is the part of the interface that says what hosts and the target have done; see api.go.

// Latency is how long the commands of a host for a namespace took, since the host first used it.
type Latency struct {
	// Host is the NQN of the host; it is empty for hosts that are not counted apart.
	Host string `json:"host"`
	// Subsystem is the NQN of the subsystem, NSID identifies the namespace there.
	Subsystem string `json:"subsystem"`
	NSID      uint32 `json:"nsid"`
	// Operation is read, write or other.
	Operation string `json:"operation"`
	// IOs is the number of commands, Errors that of those which failed, Bytes the data of the
	// others.
	IOs    uint64 `json:"ios"`
	Errors uint64 `json:"errors"`
	Bytes  uint64 `json:"bytes"`
	// Dominant is the stage in which most of the time was spent.
	Dominant string `json:"dominant"`
	// Total is the time from the arrival of a command until its response has left, Stages its
	// parts.
	Total  LatencyStage   `json:"total"`
	Stages []LatencyStage `json:"stages"`
	// Buckets is the histogram of Total, without empty buckets: differences of two answers have the
	// quantiles of the time between.
	Buckets []LatencyBucket `json:"buckets"`
}

// LatencyBucket is how many commands took about as long.
type LatencyBucket struct {
	// NS is the middle of the bucket in nanoseconds, at most 3.2 % off.
	NS int64 `json:"ns"`
	// Count is how many commands.
	Count uint64 `json:"n"`
}

// LatencyStage is how long commands were in a stage.
type LatencyStage struct {
	// Stage is wait (for memory or at a limit), host_data (the data of writes comes from the host),
	// backend, response (it leaves, with the data of reads) or total.
	Stage string `json:"stage"`
	// Share is the part of the total time, 0 to 1.
	Share float64 `json:"share"`
	// MeanSeconds is the mean; P50Seconds is what half of the commands did not exceed, and so on.
	MeanSeconds  float64 `json:"mean_seconds"`
	P50Seconds   float64 `json:"p50_seconds"`
	P99Seconds   float64 `json:"p99_seconds"`
	P999Seconds  float64 `json:"p99.9_seconds"`
	P9999Seconds float64 `json:"p99.99_seconds"`
	MaxSeconds   float64 `json:"max_seconds"`
	// SlowestSeconds is what the command that took longest spent in this stage.
	SlowestSeconds float64 `json:"slowest_seconds"`
}

// TraceQueue is what the flight recorder has of a queue: a line of the answer to GET /v1/trace.
type TraceQueue struct {
	// Time is when this was copied.
	Time time.Time `json:"time"`
	// Reason is why it was kept: what has failed. It is missing if it is no dump.
	Reason string `json:"reason,omitempty"`
	// ID is that of the connection, unique until the target ends.
	ID uint64 `json:"id"`
	// Host and Subsystem are NQNs.
	Host      string `json:"host"`
	Subsystem string `json:"subsystem"`
	// CNTLID is the controller ID.
	CNTLID uint16 `json:"cntlid"`
	// QID is the queue ID, 0 for the admin queue.
	QID uint16 `json:"qid"`
	// Reactor is the index of the reactor that serves it.
	Reactor int `json:"reactor"`
	// Transport is tcp or rdma.
	Transport string `json:"transport"`
	// Local is the address of the target, Remote that of the host.
	Local  string `json:"local"`
	Remote string `json:"remote"`
	// Missed is how many completed commands before these are not known any more.
	Missed uint64 `json:"missed"`
	// Commands are the last ones that were completed, and those that are not.
	Commands []TraceCommand `json:"commands"`
}

// TraceCommand is a command, without its data. Of Fabrics commands nothing but the type is known.
type TraceCommand struct {
	// Number counts the completed commands of the queue; it is missing for others.
	Number uint64 `json:"number,omitempty"`
	// State is waiting (for memory, at a limit or for data from the host), executing, responding
	// (it is completed, and the response has not left), done, or abandoned (the queue ended first).
	State string `json:"state"`
	// Start is when it arrived.
	Start time.Time `json:"start"`
	// Command is its name, Opcode its opcode, FabricsType the type of a Fabrics command.
	Command     string `json:"command"`
	Opcode      uint16 `json:"opcode"`
	FabricsType uint16 `json:"fabrics_type,omitempty"`
	// CID is the command identifier.
	CID uint16 `json:"cid"`
	// NSID is the namespace.
	NSID uint32 `json:"nsid,omitempty"`
	// LBA is the first of the blocks of a command that has Blocks of them, FUA force unit access.
	LBA    uint64 `json:"lba,omitempty"`
	Blocks int    `json:"blocks,omitempty"`
	FUA    bool   `json:"fua,omitempty"`
	// Fused is 1 for the first and 2 for the second command of a fused operation.
	Fused uint16 `json:"fused,omitempty"`
	// CDW10, CDW11 and CDW12 (its lower half) are of commands without Blocks.
	CDW10 uint32 `json:"cdw10,omitempty"`
	CDW11 uint32 `json:"cdw11,omitempty"`
	CDW12 uint16 `json:"cdw12,omitempty"`
	// Length is the number of bytes of data.
	Length uint32 `json:"length"`
	// Status is the status of a completed command as text, StatusCode as a number: DNR, M, SCT and
	// SC.
	Status     string `json:"status,omitempty"`
	StatusCode uint16 `json:"status_code"`
	// WaitSeconds, HostDataSeconds, BackendSeconds and ResponseSeconds are how long it was in each
	// stage, as in Latency: what is known so far, all of it in the state done.
	WaitSeconds     float64 `json:"wait_seconds"`
	HostDataSeconds float64 `json:"host_data_seconds"`
	BackendSeconds  float64 `json:"backend_seconds"`
	ResponseSeconds float64 `json:"response_seconds"`
}

// Refusal is what a peer was refused, or why its connection was ended.
type Refusal struct {
	// First and Last are when it happened, Count how often.
	First time.Time `json:"first"`
	Last  time.Time `json:"last"`
	Count uint64    `json:"count"`
	// Remote is the address of the peer, with the port of the last time.
	Remote string `json:"remote"`
	// Message is what happened.
	Message string `json:"message"`
	// Expected is what a field must be, Received what the peer has sent.
	Expected string `json:"expected,omitempty"`
	Received string `json:"received,omitempty"`
	// Hint says what an operator can do.
	Hint string `json:"hint,omitempty"`
	// Attributes are the other details, as in the log.
	Attributes []Attribute `json:"attributes"`
}

// Attribute is a detail of a line of the log.
type Attribute struct {
	// Key is one of those in docs/glossary.md.
	Key string `json:"key"`
	// Value as text.
	Value string `json:"value"`
}

// Event is a line of the log.
type Event struct {
	// ID counts the events since the start; a gap says that events are no longer known.
	ID uint64 `json:"id"`
	// Time is when it happened.
	Time time.Time `json:"time"`
	// Level is INFO, WARN or ERROR.
	Level string `json:"level"`
	// Message is what happened.
	Message string `json:"message"`
	// Attributes are the details, as in the log.
	Attributes []Attribute `json:"attributes"`
}
