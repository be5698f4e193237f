package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nvmf-target/nvmf-target/internal/capture"
	"github.com/nvmf-target/nvmf-target/internal/observed"
)

// traceOptions are the flags of trace.
type traceOptions struct {
	options
	query observed.TraceQuery
	write string
}

func traceCommand() *cobra.Command {
	var o traceOptions
	cmd := &cobra.Command{
		Use: "trace", Short: "Show the last commands of each queue, or follow them",
		Args: cobra.NoArgs,
		Long: "Show the last 512 commands of each queue of allowed hosts, and the commands in " +
			"progress, without their data: the time of arrival, the command, its status, and " +
			"the time in each stage (see nvmf-target latency). With --dumps, show the kept " +
			"commands of queues that failed, or that had a command that took 5 s: the last 32 " +
			"dumps within 24 hours. This needs the role operate.\n\nWith --write, they are " +
			"written to a file for Wireshark: each command and each response is a packet, " +
			"which Wireshark decodes as NVMe/TCP, even for RDMA queues. The addresses are " +
			"real; the port of the target is always 4420. Headers of IP and TCP, the Connect " +
			"command and SGL descriptors are made up, there is no data, and Fabrics commands " +
			"are empty. Comments give the time in each stage.",
		Example: `  nvmf-target trace --queue 1 | tail
  nvmf-target trace -f --host nqn.2014-08.org.nvmexpress:uuid:1b4e28ba-2fa1-11d2-883f-0016d3cca427
  nvmf-target trace --dumps --write dumps.pcapng && wireshark dumps.pcapng`,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd) },
	}
	o.add(cmd)
	f := cmd.Flags()
	f.BoolVarP(&o.query.Follow, "follow", "f", false,
		"show commands as their responses leave, until interrupted")
	f.BoolVar(&o.query.Dumps, "dumps", false, "show the kept commands of queues that failed")
	f.StringVar(&o.query.Host, "host", "", "only queues of the host with this NQN")
	f.StringVar(&o.query.Subsystem, "subsystem", "", "only queues of the subsystem with this NQN")
	f.IntVar(&o.query.Queue, "queue", -1, "only queues with this ID, 0 for admin queues")
	f.StringVar(&o.write, "write", "", "write a pcapng file instead of text")
	cmd.MarkFlagsMutuallyExclusive("follow", "dumps")
	return cmd
}

func (o *traceOptions) run(cmd *cobra.Command) (err error) {
	if err := o.check(); err != nil {
		return err
	}
	if o.query.Queue > 0xFFFF || o.query.Queue < 0 && cmd.Flags().Changed("queue") {
		return fmt.Errorf("--queue %d: a queue ID is 0 to 65535", o.query.Queue)
	}
	show := func(q observed.TraceQueue) error { return o.print(cmd.OutOrStdout(), &q) }
	if o.write != "" {
		f, err := os.OpenFile(o.write, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, f.Close()) }()
		c, err := capture.New(f)
		if err != nil {
			return err
		}
		show = c.Add
	}
	found := false
	err = o.each(cmd.Context(), func(q observed.TraceQueue) error {
		found = true
		return show(q)
	})
	if err != nil || found || o.query.Follow || o.output == "json" {
		return err
	}
	_, err = fmt.Fprintln(cmd.OutOrStdout(), o.nothing())
	return err
}

// nothing describes an empty result: nothing recorded, or nothing selected.
func (o *traceOptions) nothing() string {
	text := "no host is connected"
	if o.query.Dumps {
		text = "nothing was kept: no queue has failed, and no command took 5 s, within 24 hours"
	}
	if o.query.Host != "" || o.query.Subsystem != "" || o.query.Queue >= 0 {
		text = "no such queue, or " + text
	}
	return text
}

// each calls fn with each selected queue.
func (o *traceOptions) each(ctx context.Context, fn func(observed.TraceQueue) error) error {
	c, err := o.client()
	if err != nil {
		return err
	}
	defer c.Close()
	if !o.query.Follow {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, 4*readTimeout) // there may be thousands of queues
		defer cancel()
	}
	return stopped(c.Trace(ctx, o.query, fn))
}

func (o *traceOptions) print(w io.Writer, q *observed.TraceQueue) error {
	if o.output == "json" {
		return json.NewEncoder(w).Encode(q) // one per line
	}
	return o.table(w, q).flush()
}

// table has a line for each command.
func (o *traceOptions) table(w io.Writer, q *observed.TraceQueue) *table {
	t := newTable(w)
	t.optional = []string{"CID", "BYTES", "NSID", "BLOCKS"} // then the status is cut
	title := fmt.Sprintf("%s to %s, controller %d, queue %d, %s from %s", q.Host, q.Subsystem,
		q.CNTLID, q.QID, q.Transport, q.Remote)
	if q.Reason != "" {
		title += fmt.Sprintf(", kept %s: %s", stamp(q.Time), q.Reason)
	}
	t.line(plain(title))
	if q.Missed > 0 && o.query.Follow {
		t.line(count(int(q.Missed), "command") + " missed")
	}
	t.row("TIME", "COMMAND", "CID", "NSID", "LBA", "BLOCKS", "BYTES", "WAIT", "HOST_DATA",
		"BACKEND", "RESPONSE", "STATUS")
	for i := range q.Commands {
		c := &q.Commands[i]
		nsid, lba, blocks := blank(c.NSID), blank(uint32(c.Blocks)), blank(uint32(c.Blocks))
		if c.Blocks > 0 {
			lba = fmt.Sprint(c.LBA)
		}
		status := c.Status
		if c.State != "done" {
			status = strings.TrimSpace(c.State + " " + c.Status)
		}
		t.row(c.Start.Local().Format("15:04:05.000000"), traceName(c), c.CID, nsid, lba, blocks,
			c.Length, brief(c.WaitSeconds), brief(c.HostDataSeconds), brief(c.BackendSeconds),
			brief(c.ResponseSeconds), status)
	}
	t.line("")
	return t
}

// traceName returns the name of the command with its modifiers.
func traceName(c *observed.TraceCommand) string {
	name := cmp.Or(c.Command, fmt.Sprintf("%02xh", c.Opcode))
	if c.FUA {
		name += " FUA"
	}
	if c.Fused != 0 {
		name += fmt.Sprintf(" fused %d", c.Fused)
	}
	return name
}

func blank(n uint32) string {
	if n == 0 {
		return "-"
	}
	return fmt.Sprint(n)
}
