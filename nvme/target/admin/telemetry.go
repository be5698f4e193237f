package admin

import (
	"encoding/json"
	"slices"
	"time"

	"github.com/nvmf-target/nvmf-target/internal/observed"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// The telemetry of a controller (log 07h) is the operator's view of it, for the administrator of
// the host: JSON with the names of the control interface. It is the association's own: its queues,
// the namespaces with their totals, which log 02h has, too, and the log lines about this host at
// this address, with the keys that cannot name anybody else. It has no name, address or log line of
// another host, and of the storage only the data of Identify. The controller captures nothing by
// itself, so log 08h is its header.

// Telemetry is the last capture of a controller. It is kept until the controller ends, since hosts
// read it in pieces (Base section 5.1.12.1.8).
type Telemetry struct {
	// Query captures.
	Query      Query[[]byte]
	data       []byte
	generation uint8
}

const (
	// TelemetrySize bounds a capture, in bytes.
	TelemetrySize = 64 << 10
	// TelemetryList is the most things of a kind that a capture has.
	TelemetryList = 256
	// TelemetryAge is the largest age of a capture that a host asks for: each costs time.
	TelemetryAge = 100 * time.Millisecond
)

// telemetryKeys are the keys of log lines that a capture has. Others may have addresses of other
// hosts, or reveal other configuration, as the hint of a refused Connect does.
var telemetryKeys = []string{
	"cntlid", "depth", "duration", "field", "nsid", "qid", "status", "subsystem", "timeout",
	"transport",
}

// Capture is the content of log 07h.
type Capture struct {
	Version       string    `json:"version"`
	Time          time.Time `json:"time"`
	UptimeSeconds float64   `json:"uptime_seconds"`

	Host      string `json:"host"`
	ID        string `json:"id"`
	Subsystem string `json:"subsystem"`
	CNTLID    uint16 `json:"cntlid"`
	Ready     bool   `json:"ready"`

	Connections []observed.Connection `json:"connections"`
	Namespaces  []observed.Namespace  `json:"namespaces"`
	Limits      []CapturedLimit       `json:"limits"`
	Refusals    []CapturedLine        `json:"refusals"` // the last one first
	Events      []CapturedLine        `json:"events"`   // the last one last
	// Truncated reports whether a list was cut off.
	Truncated bool `json:"truncated"`
}

// CapturedLine is a log line, or a refusal with how often it came.
type CapturedLine struct {
	Time       time.Time         `json:"time"`
	Count      uint64            `json:"count,omitempty"`
	Level      string            `json:"level,omitempty"`
	Message    string            `json:"message"`
	Attributes map[string]string `json:"attributes"`
}

// CapturedLimit is the limit of the host or of the subsystem.
type CapturedLimit struct {
	Of string `json:"of"`
	*observed.Limits
}

// Page makes log 07h from LPO on, of a new capture if the host asks for one.
func (t *Telemetry) Page(log *nvme.GetLogSQE) Reply {
	off := log.LPO()
	page := func() Reply {
		return telemetryPage(nvme.TelemetryHeader{
			LID: nvme.LogTelemetryHost, THS: nvme.TelemetryScopeController, THDGN: t.generation,
		}, t.data, off)
	}
	if log.LSP()&nvme.TelemetryCreate == 0 {
		return page()
	}
	return Reply{Queries: []Asker{&t.Query}, Build: func() Reply {
		data, _, err := t.Query.Peek()
		if data == nil || err != nil {
			return Reply{Status: nvme.InternalError}
		}
		t.data = *data
		t.generation++
		return page()
	}}
}

// NoTelemetry makes log 08h from LPO on. It has no data.
func NoTelemetry(log *nvme.GetLogSQE) Reply {
	return telemetryPage(nvme.TelemetryHeader{
		LID: nvme.LogTelemetryCtrl, THDGN: nvme.TelemetryScopeController,
	}, nil, log.LPO())
}

func telemetryPage(h nvme.TelemetryHeader, data []byte, off uint64) Reply {
	b := nvme.AppendTelemetry(nil, h, data)
	return Reply{Data: b[min(off, uint64(len(b))):]}
}

// Encode returns the capture as JSON of at most TelemetrySize bytes. It leaves out half of every
// list until it fits.
func (v *Capture) Encode() (*[]byte, error) {
	b, err := json.Marshal(v)
	for ; len(b) > TelemetrySize && err == nil; b, err = json.Marshal(v) {
		v.halve()
	}
	return &b, err
}

// halve leaves half of everything out.
func (v *Capture) halve() {
	v.Truncated = true
	v.Connections = v.Connections[:len(v.Connections)/2]
	v.Namespaces = v.Namespaces[:len(v.Namespaces)/2]
	v.Refusals = v.Refusals[:len(v.Refusals)/2]
	v.Events = v.Events[len(v.Events)-len(v.Events)/2:]
}

// AddLines adds the log lines about the host.
func (v *Capture) AddLines(events []observed.Event, refusals []observed.Refusal) {
	attributes := func(list []observed.Attribute) map[string]string {
		m := map[string]string{}
		for _, a := range list {
			if slices.Contains(telemetryKeys, a.Key) {
				m[a.Key] = a.Value
			}
		}
		return m
	}
	for _, e := range events {
		v.Events = append(v.Events, CapturedLine{
			Time: e.Time, Level: e.Level, Message: e.Message,
			Attributes: attributes(e.Attributes),
		})
	}
	for _, r := range refusals {
		v.Refusals = append(v.Refusals, CapturedLine{
			Time: r.Last, Count: r.Count, Message: r.Message, Attributes: attributes(r.Attributes),
		})
	}
}
