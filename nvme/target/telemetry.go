package target

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/nvmf-target/nvmf-target/internal/observed"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// The telemetry of a controller (log 07h) is what an operator of the target sees of it, for the
// administrator of the host: JSON with the names that the control interface has. It is the
// association's own: its queues, the namespaces with their totals, which log 02h has, too, and the
// log lines about this host at this address, with those keys that cannot name anybody else. Of
// other hosts it has no name, no address and no line, and of the storage nothing but what Identify
// shows. The controller captures nothing by itself, so log 08h is its header.

// telemetry is the last capture of a controller. It is kept until the controller ends, since hosts
// read it in pieces (Base section 5.1.12.1.8). The controller's reactor only.
type telemetry struct {
	query      *query[[]byte]
	data       []byte
	generation uint8
}

const (
	// telemetrySize bounds a capture, in bytes.
	telemetrySize = 64 << 10
	// telemetryList is how many things of a kind it has at most.
	telemetryList = 256
	// telemetryAge is how old one may be that a host asks for: each costs time.
	telemetryAge = 100 * time.Millisecond
)

// telemetryKeys are the keys of log lines that a capture has. Others may have addresses of other
// hosts, or say what else is configured, as the hint of a Connect that was refused.
var telemetryKeys = []string{
	"cntlid", "depth", "duration", "field", "nsid", "qid", "status", "subsystem", "timeout",
	"transport",
}

// capture is the content of log 07h.
type capture struct {
	Version       string    `json:"version"`
	Time          time.Time `json:"time"`
	UptimeSeconds float64   `json:"uptime_seconds"`

	Host      string `json:"host"`
	ID        string `json:"id"`
	Subsystem string `json:"subsystem"`
	CNTLID    uint16 `json:"cntlid"`
	Ready     bool   `json:"ready"`

	Connections []capturedConnection `json:"connections"`
	Namespaces  []capturedNamespace  `json:"namespaces"`
	Limits      []capturedLimit      `json:"limits"`
	Refusals    []capturedLine       `json:"refusals"` // the last one first
	Events      []capturedLine       `json:"events"`   // the last one last
	// Truncated says that there is more of something.
	Truncated bool `json:"truncated"`
}

type capturedLine struct {
	Time       time.Time         `json:"time"`
	Count      uint64            `json:"count,omitempty"`
	Level      string            `json:"level,omitempty"`
	Message    string            `json:"message"`
	Attributes map[string]string `json:"attributes"`
}

type capturedConnection struct {
	QID                     uint16         `json:"qid"`
	Depth                   int            `json:"depth"`
	InFlight                int            `json:"in_flight"`
	Transport               string         `json:"transport"`
	Local                   netip.AddrPort `json:"local"`
	Remote                  netip.AddrPort `json:"remote"`
	PortID                  uint16         `json:"port_id"`
	AgeSeconds              float64        `json:"age_seconds"`
	KeepAliveTimeoutSeconds float64        `json:"keep_alive_timeout_seconds,omitempty"`
	HeaderDigest            bool           `json:"header_digest"`
	DataDigest              bool           `json:"data_digest"`
	Commands                uint64         `json:"commands"`
	ReadBytes               uint64         `json:"read_bytes"`
	WrittenBytes            uint64         `json:"written_bytes"`
}

type capturedNamespace struct {
	NSID           uint32            `json:"nsid"`
	Ready          bool              `json:"ready"`
	Degraded       bool              `json:"degraded"`
	Paused         bool              `json:"paused"`
	WriteProtected bool              `json:"write_protected"`
	SizeBytes      int64             `json:"size_bytes"`
	BlockSizeBytes int64             `json:"block_size_bytes"`
	Reads          uint64            `json:"reads"`
	Writes         uint64            `json:"writes"`
	ReadBytes      uint64            `json:"read_bytes"`
	WrittenBytes   uint64            `json:"written_bytes"`
	BusySeconds    float64           `json:"busy_seconds"`
	Errors         map[string]uint64 `json:"errors,omitempty"`
	Timeouts       uint64            `json:"timeouts"`
}

// capturedLimit is the limit of the host, of the subsystem, or of a namespace.
type capturedLimit struct {
	Of          string  `json:"of"`
	NSID        uint32  `json:"nsid,omitempty"`
	IOPS        int64   `json:"iops,omitempty"`
	Bandwidth   int64   `json:"bandwidth,omitempty"`
	Waits       uint64  `json:"waits"`
	WaitSeconds float64 `json:"wait_seconds"`
}

// telemetryPage makes log 07h from LPO on, of a new capture if the host asks for one.
func telemetryPage(c *controller, sqe *nvme.SQE) reply {
	t, off := &c.telemetry, sqe.GetLog().LPO()
	page := func() reply {
		h := nvme.TelemetryHeader{
			LID: nvme.LogTelemetryHost, THS: nvme.TelemetryScopeController, THDGN: t.generation,
		}
		b := nvme.AppendTelemetry(nil, h, t.data)
		return reply{data: b[min(off, uint64(len(b))):]}
	}
	if sqe.GetLog().LSP()&nvme.TelemetryCreate == 0 {
		return page()
	}
	if t.query == nil {
		t.query = &query[[]byte]{ask: c.capture, age: telemetryAge}
	}
	return reply{queries: []asker{t.query}, build: func() reply {
		data, _, err := t.query.peek()
		if data == nil || err != nil {
			return reply{st: nvme.InternalError}
		}
		t.data = *data
		t.generation++
		return page()
	}}
}

// noTelemetryPage makes log 08h, which has no data.
func noTelemetryPage(_ *controller, sqe *nvme.SQE) reply {
	b := nvme.AppendTelemetry(nil, nvme.TelemetryHeader{
		LID: nvme.LogTelemetryCtrl, THDGN: nvme.TelemetryScopeController,
	}, nil)
	return reply{data: b[min(sqe.GetLog().LPO(), uint64(len(b))):]}
}

var (
	errNoAnswer = errors.New("a reactor does not answer")
	errNoTurn   = errors.New("too many controllers are captured")
)

// capture captures the state of the controller, when no other is captured: each takes processor
// time from the reactors. It waits for those of its queues, so no reactor calls it.
func (c *controller) capture() (*[]byte, error) {
	select {
	case c.t.capturing <- struct{}{}:
		defer func() { <-c.t.capturing }()
	case <-time.After(answerWait):
		return nil, errNoTurn
	}
	info := c.describe()
	v := capture{
		Version: c.t.options.Firmware, Time: time.Now(),
		UptimeSeconds: time.Since(c.t.started).Seconds(),
		Host:          c.hostNQN, ID: hex.EncodeToString(c.hostID[:]), Subsystem: c.sub.nqn,
		CNTLID: c.cntlid, Ready: info.Ready, Limits: c.capturedLimits(),
	}
	var err error
	if v.Connections, err = c.capturedConnections(); err != nil {
		return nil, err
	}
	for _, ns := range c.namespaces() {
		if v.Truncated = len(v.Namespaces) == telemetryList; v.Truncated {
			break
		}
		v.Namespaces = append(v.Namespaces, ns.captured())
	}
	v.addLines(c.t.hostLog.About(c.info.Remote.Addr(), c.hostNQN))
	b, err := json.Marshal(&v)
	for ; len(b) > telemetrySize && err == nil; b, err = json.Marshal(&v) {
		v.halve()
	}
	return &b, err
}

// halve leaves half of everything out.
func (v *capture) halve() {
	v.Truncated = true
	v.Connections = v.Connections[:len(v.Connections)/2]
	v.Namespaces = v.Namespaces[:len(v.Namespaces)/2]
	v.Limits = v.Limits[:len(v.Limits)/2]
	v.Refusals = v.Refusals[:len(v.Refusals)/2]
	v.Events = v.Events[len(v.Events)-len(v.Events)/2:]
}

func (v *capture) addLines(events []observed.Event, refusals []observed.Refusal) {
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
		v.Events = append(v.Events, capturedLine{
			Time: e.Time, Level: e.Level, Message: e.Message,
			Attributes: attributes(e.Attributes),
		})
	}
	for _, r := range refusals {
		v.Refusals = append(v.Refusals, capturedLine{
			Time: r.Last, Count: r.Count, Message: r.Message, Attributes: attributes(r.Attributes),
		})
	}
}

func (c *controller) capturedConnections() ([]capturedConnection, error) {
	c.mu.Lock()
	sessions := append(c.ioQueues(), c.admin)
	c.mu.Unlock()
	sessions = sessions[max(len(sessions)-telemetryList, 0):]
	answers := make(chan *connections, len(sessions))
	for _, s := range sessions {
		s.h.post(func() {
			a := &connections{alive: map[*controller]keepAliveInfo{}}
			if !s.closed {
				a.add(s)
			}
			answers <- a
		})
	}
	var list []capturedConnection
	timeout := time.After(answerWait)
	for range sessions {
		select {
		case <-timeout:
			return nil, errNoAnswer
		case a := <-answers:
			for _, i := range a.list {
				list = append(list, capturedConnection{
					QID: i.QID, Depth: i.Depth, InFlight: i.InFlight,
					Transport: i.Transport.String(), Local: i.Local, Remote: i.Remote,
					PortID: i.PortID, AgeSeconds: i.Age.Seconds(),
					KeepAliveTimeoutSeconds: a.alive[c].timeout.Seconds(),
					HeaderDigest:            i.HeaderDigest, DataDigest: i.DataDigest,
					Commands: i.Commands, ReadBytes: i.ReadBytes, WrittenBytes: i.WrittenBytes,
				})
			}
		}
	}
	slices.SortFunc(list, func(a, b capturedConnection) int { return int(a.QID) - int(b.QID) })
	return list, nil
}

func (ns *namespace) captured() capturedNamespace {
	s := ns.stats()
	maps.DeleteFunc(s.Errors, func(_ string, n uint64) bool { return n == 0 })
	return capturedNamespace{
		NSID: s.NSID, Ready: s.Ready, Degraded: s.Degraded, Paused: s.Paused,
		WriteProtected: s.WriteProtected, SizeBytes: s.Size, BlockSizeBytes: s.BlockSize,
		Reads: s.Reads, Writes: s.Writes, ReadBytes: s.ReadBytes, WrittenBytes: s.WrittenBytes,
		BusySeconds: s.Busy.Seconds(), Errors: s.Errors, Timeouts: s.Timeouts,
	}
}

// capturedLimits are those that commands of the host may wait at.
func (c *controller) capturedLimits() (list []capturedLimit) {
	add := func(l *limiter, of string, nsid uint32) {
		if l == nil || len(list) == telemetryList {
			return
		}
		i := l.info(LimitedObject{})
		list = append(list, capturedLimit{
			Of: of, NSID: nsid, IOPS: i.IOPS, Bandwidth: i.Bandwidth, Waits: i.Waits,
			WaitSeconds: i.WaitTime.Seconds(),
		})
	}
	add(c.t.hostLimiter(c.hostNQN), "host", 0)
	add(c.sub.settings.Load().limiter, "subsystem", 0)
	for _, ns := range c.namespaces() {
		add(ns.cfg.Load().limiter, "namespace", ns.nsid)
	}
	return list
}
