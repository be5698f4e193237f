package observed

import (
	"net/netip"
	"time"
)

// This file has the activity of hosts and of the target.

// Latency is the latency of the commands of a host for a namespace, since the host first used it.
type Latency struct {
	// Host is the NQN of the host; it is empty for hosts that are not counted separately.
	Host string `json:"host"`
	// Subsystem is the NQN of the subsystem, NSID identifies the namespace there.
	Subsystem string `json:"subsystem"`
	NSID      uint32 `json:"nsid"`
	// Operation is read, write or other.
	Operation string `json:"operation"`
	// IOs counts the commands, Errors the failed ones, Bytes the data of the successful ones.
	IOs    uint64 `json:"ios"`
	Errors uint64 `json:"errors"`
	Bytes  uint64 `json:"bytes"`
	// Dominant is the stage that took most of the time.
	Dominant string `json:"dominant"`
	// Total is the time from arrival until the response has left, Stages the parts of Total.
	Total  LatencyStage   `json:"total"`
	Stages []LatencyStage `json:"stages"`
	// Buckets is the histogram of Total; the difference of two gives quantiles in between.
	Buckets []LatencyBucket `json:"buckets"`
}

// LatencyBucket is the number of commands with about the same latency.
type LatencyBucket struct {
	// NS is the middle of the bucket in nanoseconds, at most 3.2 % off.
	NS int64 `json:"ns"`
	// Count is the number of commands.
	Count uint64 `json:"n"`
}

// LatencyStage is the time of commands in a stage.
type LatencyStage struct {
	// Stage is wait (for memory or at a limit), host_data (transfer of the data of writes),
	// backend, response (transfer of the response and the data of reads) or total.
	Stage string `json:"stage"`
	// Share is the part of the total time, 0 to 1.
	Share float64 `json:"share"`
	// MeanSeconds is the mean, P50Seconds the median, P99Seconds the 99th percentile, P999Seconds
	// the 99.9th percentile, P9999Seconds the 99.99th percentile, MaxSeconds the longest time.
	MeanSeconds  float64 `json:"mean_seconds"`
	P50Seconds   float64 `json:"p50_seconds"`
	P99Seconds   float64 `json:"p99_seconds"`
	P999Seconds  float64 `json:"p99.9_seconds"`
	P9999Seconds float64 `json:"p99.99_seconds"`
	MaxSeconds   float64 `json:"max_seconds"`
	// SlowestSeconds is the time that the slowest command spent in this stage.
	SlowestSeconds float64 `json:"slowest_seconds"`
	// Nanoseconds is the time of all commands.
	Nanoseconds uint64 `json:"-"`
}

// The states of a TraceCommand.
const (
	TraceWaiting    = "waiting"    // for memory, at a limit, or for data from the host
	TraceExecuting  = "executing"  // by the target, or its device
	TraceResponding = "responding" // it is completed, and the response has not left
	TraceDone       = "done"       // the response has left
	TraceAbandoned  = "abandoned"  // the queue ended before it was executed
)

// TraceQueue is the flight recorder of a queue: a line of the answer to GET /v1/trace.
type TraceQueue struct {
	// Time is the time of this copy.
	Time time.Time `json:"time"`
	// Reason is the failure that caused a dump. It is missing if this is not a dump.
	Reason string `json:"reason,omitempty"`
	// ID identifies the connection until the target ends.
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
	// Local is the address of the target, Remote the address of the host.
	Local  netip.AddrPort `json:"local"`
	Remote netip.AddrPort `json:"remote"`
	// Missed is the number of earlier completed commands that are no longer known.
	Missed uint64 `json:"missed"`
	// Commands are the last completed commands, and the commands in progress.
	Commands []TraceCommand `json:"commands"`
}

// TraceCommand is a command, without its data. Of Fabrics commands only the type is known.
type TraceCommand struct {
	// Number counts the completed commands of the queue; it is missing for others.
	Number uint64 `json:"number,omitempty"`
	// State is waiting (for memory, at a limit or for data from the host), executing, responding
	// (it is completed, but the response has not left), done, or abandoned (the queue ended first).
	State string `json:"state"`
	// Start is the time of its arrival.
	Start time.Time `json:"start"`
	// Command is its name, Opcode its opcode, FabricsType the type of a Fabrics command.
	Command     string `json:"command"`
	Opcode      uint16 `json:"opcode"`
	FabricsType uint16 `json:"fabrics_type,omitempty"`
	// CID is the command identifier.
	CID uint16 `json:"cid"`
	// NSID is the namespace.
	NSID uint32 `json:"nsid,omitempty"`
	// LBA is the first block, Blocks the number of blocks, FUA force unit access.
	LBA    uint64 `json:"lba,omitempty"`
	Blocks int    `json:"blocks,omitempty"`
	FUA    bool   `json:"fua,omitempty"`
	// Fused is 1 for the first and 2 for the second command of a fused operation.
	Fused uint16 `json:"fused,omitempty"`
	// CDW10, CDW11 and CDW12 (its lower half) are for commands without Blocks.
	CDW10 uint32 `json:"cdw10,omitempty"`
	CDW11 uint32 `json:"cdw11,omitempty"`
	CDW12 uint16 `json:"cdw12,omitempty"`
	// Length is the number of bytes of data.
	Length uint32 `json:"length"`
	// Status is the status of a completed command, StatusCode its number: DNR, M, SCT and SC.
	Status     string `json:"status,omitempty"`
	StatusCode uint16 `json:"status_code"`
	// WaitSeconds, HostDataSeconds, BackendSeconds and ResponseSeconds are the times in each stage,
	// as in Latency. Until the state is done, they are the times known so far.
	WaitSeconds     float64 `json:"wait_seconds"`
	HostDataSeconds float64 `json:"host_data_seconds"`
	BackendSeconds  float64 `json:"backend_seconds"`
	ResponseSeconds float64 `json:"response_seconds"`
}

// Refusal is a refused peer, or the reason for ending its connection.
type Refusal struct {
	// First and Last are the times of the first and the last one, Count the number of refusals.
	First time.Time `json:"first"`
	Last  time.Time `json:"last"`
	Count uint64    `json:"count"`
	// Remote is the address of the peer, with the port of the last one.
	Remote string `json:"remote"`
	// Message describes the event.
	Message string `json:"message"`
	// Expected is the required value of a field, Received the value that the peer has sent.
	Expected string `json:"expected,omitempty"`
	Received string `json:"received,omitempty"`
	// Hint is a fix for an operator.
	Hint string `json:"hint,omitempty"`
	// Attributes are the other details, as in the log.
	Attributes []Attribute `json:"attributes"`
}

// Attribute is a detail of a line of the log.
type Attribute struct {
	// Key is a key as in docs/glossary.md.
	Key string `json:"key"`
	// Value as text.
	Value string `json:"value"`
}

// Event is a line of the log.
type Event struct {
	// ID is the number of the event since the start. Events in a gap are no longer kept.
	ID uint64 `json:"id"`
	// Time is the time of the event.
	Time time.Time `json:"time"`
	// Level is INFO, WARN or ERROR.
	Level string `json:"level"`
	// Message describes the event.
	Message string `json:"message"`
	// Attributes are the details, as in the log.
	Attributes []Attribute `json:"attributes"`
}

// PortCounter is a counter that a driver has of a port of an RDMA device.
type PortCounter struct {
	// Device and Port name the port. Counter is the driver's name of the counter, Value its value.
	Device  string `json:"device"`
	Port    string `json:"port"`
	Counter string `json:"counter"`
	Value   uint64 `json:"value"`
}
