package metrics

import (
	"context"
	"math"
	"net/http"
	"net/http/httptest"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/internal/event"
	"github.com/nvmf-target/nvmf-target/internal/observed"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/observe"
	"github.com/nvmf-target/nvmf-target/nvme/target/qos"
	"github.com/nvmf-target/nvmf-target/nvme/target/subsystems"
)

const testNQN = "nqn.2026-11.io.nvmf-target:a \"quoted\" \\ name"

// source has a degraded namespace on an NVMe drive, one on a SATA drive, one on a drive that does
// not answer, and one in memory.
func source() Source {
	u := nvme.MakeUint128
	smart := &nvme.SMARTLog{
		CriticalWarning: nvme.SMARTSpareLow | nvme.SMARTReliability | 1<<5, Temperature: 273 + 41,
		AvailableSpare: 8, SpareThreshold: 10, PercentageUsed: 103,
		PowerOnHours: u(100), UnsafeShutdowns: u(7), MediaErrors: u(5), ErrorLogEntries: u(6),
	}
	at := time.Unix(1700000000, 0)
	return Source{
		Source: observed.Source{
			Listeners: func() []observed.Listener {
				return []observed.Listener{
					{Transport: "tcp", Address: "0.0.0.0:4420", State: "up"},
					{Transport: "rdma", Address: "mlx5_0:4420", State: "waiting"},
				}
			},
			Groups: func() []observed.Group {
				return []observed.Group{
					{
						Cluster: "c", Pool: "nvme", ANAGroup: 1, State: "serving", Hosts: true,
						CheckSeconds: 60,
						Fenced:       make([]observed.Gateway, 2),
					},
					{Cluster: "c", Pool: "nvme", ANAGroup: 2, State: "standby"},
					{Pool: "nvme", ANAGroup: 3, State: "joining"},
				}
			},
			Namespaces: func() []observed.Namespace {
				return []observed.Namespace{
					{
						Subsystem: testNQN, NSID: 1, Backend: "nvme", Path: "/dev/ng0n1\xff",
						SizeBytes: 1 << 30, BlockSizeBytes: 4096, WriteProtected: true,
						Degraded: true, VolatileCache: true, Allocated: 1 << 20, Free: 1 << 40,
						Reads: 10, Writes: 20, Flushes: 3, WriteZeroes: 4, Discards: 5,
						ReadBytes: 40960, WrittenBytes: 81920, BusySeconds: 1.5, Timeouts: 11,
						Orphans: 3, Returns: 2, Errors: map[string]uint64{"io": 4, "no_space": 146},
						Health: smart,
						Drive: &observed.Drive{
							ID: "nvme Model\xff S1", Counts: true, Answered: at,
						},
					},
					{
						Subsystem: testNQN, NSID: 2, Backend: "sata", Ready: true, Allocated: -1,
						Free:   -1,
						Health: &nvme.SMARTLog{AvailableSpare: 100, PowerOnHours: u(2)},
						Drive:  &observed.Drive{ID: "sata Model S2", Answered: at},
					},
					{
						Subsystem: testNQN, NSID: 3, Backend: "nvme", Ready: true, Allocated: -1,
						Free:   -1,
						Health: &nvme.SMARTLog{AvailableSpare: 100},
						Drive:  &observed.Drive{ID: "nvme Model S3", Counts: true},
					},
					{
						Subsystem: "b", NSID: 1, Backend: "ram", Ready: true, Allocated: -1,
						Free:   -1,
						Health: &nvme.SMARTLog{AvailableSpare: 100},
					},
					{Subsystem: "b", NSID: 2, Backend: "file", State: "pending"},
					{Subsystem: "b", NSID: 3, Backend: "file", State: "pending"},
				}
			},
			Hosts: func() []observed.Host {
				return []observed.Host{
					{Subsystem: "b", Transport: "tcp", Queues: 3},
					{Subsystem: "b", Transport: "tcp", Queues: 4},
					{Subsystem: "b", Transport: "rdma", Queues: 5},
				}
			},
			Reactors: func(context.Context) ([]observed.Reactor, error) {
				return []observed.Reactor{
					{MemoryBytes: 64 << 20},
					numbered(observed.Reactor{
						MemoryBytes: 64 << 20, MemoryUsedBytes: 3 << 20, OrphanedBytes: 1 << 20,
						WaitingCommands: 5, BusySeconds: 1, PollingSeconds: 2, AsleepSeconds: 3,
						Polls: 20, EmptyPolls: 5, Steps: map[string]uint64{"tcp": 7, "storage": 8},
					}),
				}, nil
			},
			PortCounters: func() []observed.PortCounter {
				return []observed.PortCounter{
					{Device: "mlx5_0", Port: "1", Counter: "out_of_sequence", Value: 77},
					{Device: "mlx5_0", Port: "1", Counter: "np_cnp_sent", Value: 5},
				}
			},
		},
		Version:   "v1\xff",
		Pending:   func() int { return 2 },
		AuditLost: func() uint64 { return 11 },
		Kinds: func() map[*event.Kind]uint64 {
			return map[*event.Kind]uint64{event.ConnectRefused: 9}
		},
		Limits: func() []qos.Info {
			var list []qos.Info
			for i, of := range []qos.Object{
				{HostNQN: "h"}, {SubNQN: "b"}, {SubNQN: "b", NSID: 1},
			} {
				list = append(list, qos.Info{Object: of, Limits: observed.Limits{
					Waits: uint64(3 + i), WaitSeconds: float64(3+i) / 2,
				}})
			}
			return list
		},
		Transports: map[string]func() fabric.Usage{"tcp": func() fabric.Usage {
			return numbered(fabric.Usage{
				Connections: 7, Unassociated: 3, Discovery: 2, Refused: 11, Evicted: 12,
				OverShare: 24, OutOfTurn: 25,
				Memory: 1000, MemoryLimit: 2000, Quarantined: 3, Handshakes: 21,
				FailedHandshakes: 22,
			})
		}},
		Latencies: func() []observe.LatencyInfo {
			one := observe.LatencyInfo{
				HostNQN: "h1", Namespace: observe.Namespace{SubNQN: testNQN, NSID: 1},
				Operation: observe.OperationWrite,
				Latency:   &observe.Latency{IOs: 3},
			}
			for i, us := range []int64{0, 0, 3, 5000, 20_000_000} {
				one.Stages[i%4].Add(us * 1e3)
				one.Total.Add(us * 1e3)
			}
			two := one
			two.HostNQN, two.Latency = "h2", new(*one.Latency)
			return []observe.LatencyInfo{one, two}
		},
		Paths: func() ([]Host, Secured) {
			hosts := []Host{
				{NQN: "gone", Margin: -1},
				{
					NQN: "h", Controllers: 2, Commands: 100, NearlyFull: 9, Retransmits: 4,
					RTTSeconds: 200e-6, Margin: 0.25,
				},
				{Commands: 3, Margin: 1},
			}
			return hosts, Secured{
				{"tcp", 0}: 4, {"tcp", subsystems.SecurityAuth}: 3,
				{"tcp", subsystems.SecurityAuth | subsystems.SecurityTLS}: 2,
			}
		},
		Devices: func() []observed.Device {
			return []observed.Device{
				{
					Name: "mlx5_0", QueuePairs: 3, CompletionQueues: 1, MemoryRegions: 5,
					MaxQueuePairs: 131072, MaxCompletionQueues: 65536,
				},
				{
					Name: "rxe0", QueuePairs: 1, CompletionQueues: 1, MemoryRegions: 2,
					MaxQueuePairs: 100, MaxCompletionQueues: 100, MaxMemoryRegions: 100,
				},
			}
		},
		Authentications: func() (succeeded, failed uint64) { return 31, 32 },
		Unsaved:         func() bool { return true },
		Expiries: func() []Expiry {
			return []Expiry{{"metrics_certificate", at}, {"host_keys", at}}
		},
	}
}

// numbered sets the numbers of a snapshot that are 0, so that the golden file has new ones as well.
func numbered[T any](snapshot T) T {
	fields := reflect.ValueOf(&snapshot).Elem()
	for i := range fields.NumField() {
		switch f := fields.Field(i); {
		case !f.IsZero():
		case f.CanInt():
			f.SetInt(int64(1001 + i))
		case f.CanUint():
			f.SetUint(uint64(1001 + i))
		case f.CanFloat():
			f.SetFloat(float64(1001 + i))
		}
	}
	return snapshot
}

// exposition returns the result of a scrape of src, without the metrics of the process.
func exposition(t *testing.T, src Source) string {
	t.Helper()
	r := prometheus.NewPedanticRegistry()
	r.MustRegister(collector{src})
	w := httptest.NewRecorder()
	promhttp.HandlerFor(r, promhttp.HandlerOpts{}).ServeHTTP(w,
		httptest.NewRequest(http.MethodGet, "/metrics", nil))
	testutil.MustTrue(t, w.Code == http.StatusOK, "%v %v", w.Code, w.Body)
	version := regexp.MustCompile(`goversion="[^"]*"`)
	return version.ReplaceAllString(w.Body.String(), `goversion="GO"`)
}

// TestExposition: names, labels and units are an interface. Unknown values are not exported.
func TestExposition(t *testing.T) {
	got := exposition(t, source())
	testutil.Golden(t, "testdata/metrics.golden", got)
	problems, err := promlint.New(strings.NewReader(got)).Lint()
	testutil.True(t, err == nil && len(problems) == 0, "%v, %v", problems, err)
}

// TestNativeHistograms: a scraper that asks for protobuf gets native histograms with the classic
// ones.
func TestNativeHistograms(t *testing.T) {
	r := prometheus.NewPedanticRegistry()
	r.MustRegister(collector{source()})
	families := testutil.Value(r.Gather())(t)
	for _, f := range families {
		if f.GetName() != "nvmf_target_namespace_latency_seconds" {
			continue
		}
		h := f.GetMetric()[0].GetHistogram()
		testutil.True(t, h.GetSampleCount() == 10 && h.GetZeroCount() == 4 &&
			len(h.GetBucket()) == 12 && h.GetBucket()[0].GetCumulativeCount() == 6 &&
			h.GetBucket()[11].GetCumulativeCount() == 8, "%v", h)
		at, n, left := int32(0), int64(0), map[string]int64{"3µs": 2, "5ms": 2, "20s": 2}
		deltas := h.GetPositiveDelta()
		for _, span := range h.GetPositiveSpan() {
			at += span.GetOffset()
			for range span.GetLength() {
				n, deltas = n+deltas[0], deltas[1:]
				upper := math.Exp2(float64(at) / 8)
				for name := range left {
					d, _ := time.ParseDuration(name)
					if s := d.Seconds(); s <= upper*1.05 && s > upper/1.15 {
						left[name] -= n
					}
				}
				at++
			}
		}
		testutil.True(t, len(deltas) == 0 && left["3µs"] == 0 && left["5ms"] == 0 &&
			left["20s"] == 0, "left %v of %v", left, h)
		return
	}
	t.Error("there is no histogram")
}

func TestNumber(t *testing.T) {
	large := nvme.MakeUint128(1)
	for range 64 {
		large = large.Add(large)
	}
	n := value(large)
	testutil.True(t, n >= 1e19, "2^64 is shown as %v", n)
}
