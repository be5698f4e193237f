package bench

import (
	"fmt"
	"time"

	"github.com/nvmf-target/nvmf-target/internal/load"
)

// profiles are the workloads of docs/fio/NAME.fio.
var profiles = []struct {
	name   string
	stages func(size uint64, d time.Duration) []stage
}{
	{"ai-dataset", func(size uint64, d time.Duration) []stage {
		records := load.Workload{Name: "records", Size: 256 << 10, Depth: 4, Queues: 8, Reads: 100}
		shards := load.Workload{
			Name: "shards", Size: 1 << 20, Depth: 4, Queues: 8, Reads: 100, Sequential: true,
			Parts: true, Length: part(size, 96),
		}
		return []stage{alone(records, d), alone(shards, d)}
	}},
	{"ai-checkpoint", func(size uint64, d time.Duration) []stage {
		return []stage{alone(load.Workload{
			Name: "ranks", Size: 1 << 20, Depth: 16, Queues: 4, Sequential: true, Parts: true,
			Burst: 64,
		}, d)}
	}},
	{"database", func(size uint64, d time.Duration) []stage {
		pages := load.Workload{
			Name: "pages", Size: 8 << 10, Depth: 16, Queues: 4, Reads: 80, Length: part(size, 90),
		}
		log := load.Workload{
			Name: "log", Size: 4 << 10, Depth: 1, Queues: 1, Sequential: true, Burst: 1,
			Offset: part(size, 90), Length: part(size, 10),
		}
		return []stage{{[]load.Workload{pages, log}, []run{{name: "pages and log", d: d}}}}
	}},
	{"vm", func(size uint64, d time.Duration) []stage {
		return []stage{alone(load.Workload{
			Name: "guests", Size: 4 << 10, Depth: 4, Queues: 16, Reads: 70, Parts: true,
			Length: part(size, 96), Sizes: []load.Share{
				{Size: 4 << 10, Percent: 60},
				{Size: 16 << 10, Percent: 20},
				{Size: 64 << 10, Percent: 20},
			},
		}, d)}
	}},
}

// Profiles returns the names of all profiles.
func Profiles() (names []string) {
	for _, p := range profiles {
		names = append(names, p.name)
	}
	return names
}

// part returns a percentage of a size, rounded down to a possible start of an I/O.
func part(size, percent uint64) uint64 { return size / 100 * percent >> 20 << 20 }

func alone(w load.Workload, d time.Duration) stage {
	return stage{[]load.Workload{w}, []run{{name: w.Name, d: d}}}
}

// minProfile is the size of the smallest namespace with room for all parts of profiles, in bytes.
const minProfile = 64 << 20

func (s *Settings) profile(size uint64) ([]stage, error) {
	for _, p := range profiles {
		switch {
		case p.name != s.Profile:
		case size < minProfile:
			return nil, fmt.Errorf("--profile %s: needs a namespace of at least 64 MiB", p.name)
		default:
			list := p.stages(size, s.Runtime)
			for i := range list {
				for k := range list[i].workloads {
					list[i].workloads[k].Seed = s.Seed
				}
			}
			return list, nil
		}
	}
	panic("a profile that Check does not know")
}
