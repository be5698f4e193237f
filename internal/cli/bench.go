package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
	"github.com/nvmf-target/nvmf-target/internal/bench"
)

const benchLong = `Measure a namespace of any NVMe over Fabrics target: a built-in initiator connects
over TCP or RDMA, reads or writes in the patterns of fio, and reports IOPS,
throughput and latency. It needs neither root nor the NVMe driver of the kernel.

Patterns that write need --destroy-data, because they overwrite the namespace.
Each job is an I/O queue; their threads poll, so they keep CPUs busy.`

const benchExamples = `  nvmf-target bench --address 10.0.0.1 --subsystem NQN --rw randread --iodepth 32
  nvmf-target bench --transport rdma --address 10.0.0.1 --subsystem NQN --rw read --bs 128k
  nvmf-target bench … --rw randread --rate 20000    # latency at this load
  nvmf-target bench … --rw randwrite --verify --size 10g --destroy-data
  nvmf-target bench … --profile database --destroy-data --json a.json --html a.html
  nvmf-target bench compare a.json b.json`

// Bench makes the command that generates load. stack returns the RDMA stack.
func Bench(version string, stack func(iwarp bool) verbs.Provider) *cobra.Command {
	c := bench.Connection{Verbs: stack}
	var s bench.Settings
	var jsonFile, htmlFile string
	cmd := &cobra.Command{
		Use: "bench", Short: "Generate load on a namespace and measure it", Long: benchLong,
		Example: benchExamples, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if s.Profile != "" {
				for _, name := range patternFlags {
					if cmd.Flags().Changed(name) {
						return fmt.Errorf("--%s: --profile has its own", name)
					}
				}
				s.RW, s.BlockSize, s.Depth, s.Jobs = "", "", 0, 0
			} else if s.Verify && !cmd.Flags().Changed("runtime") {
				s.Runtime = 0
			}
			return measure(cmd, c, s, version, jsonFile, htmlFile)
		},
	}
	f := cmd.Flags()
	f.StringVar(&c.Transport, "transport", "tcp", "tcp or rdma")
	f.BoolVar(&c.IWARP, "iwarp", false, "with rdma: iWARP over TCP, in this program")
	f.StringVar(&c.Address, "address", "", "HOST or HOST:PORT of the target (required; port 4420)")
	f.StringVar(&c.Subsystem, "subsystem", "", "NQN of the subsystem (required)")
	f.StringVar(&c.HostNQN, "host-nqn", "",
		"NQN of this host (default: /etc/nvme/hostnqn, or a new one)")
	f.Uint32Var(&c.NSID, "namespace", 1, "namespace ID")
	f.StringVar(&c.Key, "dhchap-key-file", "", "file with the key of this host for DH-HMAC-CHAP")
	f.StringVar(&c.ControllerKey, "dhchap-ctrl-key-file", "", "file with the key of the controller")
	f.StringVar(&c.TLSKey, "tls-key-file", "", "file with a key, which enables TLS")
	f.BoolVar(&c.HeaderDigest, "hdr-digest", false, "header digests, with tcp")
	f.BoolVar(&c.DataDigest, "data-digest", false, "data digests, with tcp")
	f.DurationVar(&c.Timeout, "timeout", 30*time.Second, "longest wait for an answer from the "+
		"target")
	f.StringVar(&s.Profile, "profile", "", "instead of a pattern: "+
		strings.Join(bench.Profiles(), ", "))
	f.StringVar(&s.RW, "rw", "randread", strings.Join(bench.Patterns, ", "))
	f.IntVar(&s.MixRead, "rwmixread", 50, "percentage of reads of rw and randrw")
	f.StringVar(&s.BlockSize, "bs", "4k", "bytes per I/O")
	f.IntVar(&s.Depth, "iodepth", 32, "I/Os in flight per job")
	f.IntVar(&s.Jobs, "numjobs", 1, "jobs, each with an I/O queue")
	f.IntVar(&s.Threads, "threads", 0, "threads for the jobs (default: one for every two CPUs)")
	f.Float64Var(&s.Rate, "rate", 0,
		"IOPS of all jobs together; latency then starts when an I/O is due")
	f.IntVar(&s.Flush, "fsync", 0, "flush each job after this many I/Os, when they have "+
		"completed")
	f.DurationVar(&s.Runtime, "runtime", 10*time.Second, "length of each measurement")
	f.DurationVar(&s.Ramp, "ramp-time", 0, "length of an unmeasured run before the measurement")
	f.StringVar(&s.Offset, "offset", "", "start of the range: bytes, or a percentage such as 25%")
	f.StringVar(&s.Size, "size", "", "size of the range (default: the rest of the namespace)")
	f.BoolVar(&s.Verify, "verify", false, "write each block of the range once, then read and "+
		"compare; with read or randread, only compare")
	f.IntVar(&s.Passes, "passes", 1, "with --verify: number of passes")
	f.Uint64Var(&s.Seed, "seed", 0, "seed of the random offsets, and of the data for --verify")
	f.BoolVar(&s.DestroyData, "destroy-data", false, "allow overwriting the namespace")
	f.StringVar(&jsonFile, "json", "", "write the report to this file, for programs and compare")
	f.StringVar(&htmlFile, "html", "", "write the report to this file, as a page with charts")
	for _, name := range []string{"address", "subsystem"} {
		_ = cmd.MarkFlagRequired(name) // the flag exists
	}
	for name, values := range map[string][]string{
		"transport": {"tcp", "rdma"}, "profile": bench.Profiles(), "rw": bench.Patterns,
	} {
		_ = cmd.RegisterFlagCompletionFunc(name,
			cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp)) // the flag exists
	}
	cmd.AddCommand(compareCommand())
	return cmd
}

// patternFlags are the flags that a profile replaces.
var patternFlags = []string{
	"rw", "rwmixread", "bs", "iodepth", "numjobs", "rate", "fsync", "offset", "size", "verify",
	"passes",
}

var errNotComplete = errors.New("the measurement ended early: its report says why")

func measure(cmd *cobra.Command, c bench.Connection, s bench.Settings, version, jsonFile,
	htmlFile string,
) error {
	ctx, cancel := signal.NotifyContext(cmd.Context(), unix.SIGINT, unix.SIGTERM)
	defer cancel()
	defer context.AfterFunc(ctx, cancel)() // a second signal ends the program
	var terminal *os.File
	if f, ok := cmd.ErrOrStderr().(*os.File); ok && isTerminal(f) {
		terminal = f
	}
	line := bench.ProgressLine{Out: terminal}
	r, err := bench.Measure(ctx, c, s, version, line.Show)
	line.Clear()
	if r == nil {
		return err
	}
	return output(cmd.OutOrStdout(), r, jsonFile, htmlFile)
}

// output writes a report. Its error does not repeat the reason for an early end.
func output(out io.Writer, r *bench.Report, jsonFile, htmlFile string) (err error) {
	if r.Error != "" {
		err = errNotComplete
	}
	err = errors.Join(err, r.WriteText(out))
	for name, write := range map[string]func(io.Writer) error{
		jsonFile: r.WriteJSON, htmlFile: r.WriteHTML,
	} {
		if name != "" {
			err = errors.Join(err, writeFile(name, write))
		}
	}
	return err
}

func writeFile(name string, write func(io.Writer) error) error {
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	return errors.Join(write(f), f.Close())
}

func compareCommand() *cobra.Command {
	return &cobra.Command{
		Use: "compare A.json B.json", Short: "Compare two reports of bench --json",
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			a, err := bench.ReadReport(args[0])
			if err != nil {
				return err
			}
			b, err := bench.ReadReport(args[1])
			if err != nil {
				return err
			}
			return bench.Compare(cmd.OutOrStdout(), a, b)
		},
	}
}
