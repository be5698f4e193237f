package web

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// finding is a fact that a person should know, in words.
type finding struct {
	Severity string `json:"severity"` // error, warning or note
	Text     string `json:"text"`
}

const (
	// recently is the time for which refusals and errors of the log count as findings.
	recently = 10 * time.Minute
	// maxFindings is the maximum number of findings; one more tells the number left out.
	maxFindings = 20
	// maxAlike is the number of namespaces that are not ready with their own findings, and the
	// number of findings of each check of doctor.Load.
	maxAlike = 5
)

var severities = []string{"error", "warning", "note"}

// findings describes problems, worst first.
func findings(s *state) (list []finding) {
	add := func(severity, format string, args ...any) {
		list = append(list, finding{severity, fmt.Sprintf(format, args...)})
	}
	s.storageFindings(add)
	for _, l := range s.Listeners {
		switch l.State {
		case "failed":
			add("error", "Listener %s %s cannot be opened: %s.", l.Transport, l.Address, l.Reason)
		case "waiting":
			add("warning", "Listener %s %s is not open yet: %s.", l.Transport, l.Address, l.Reason)
		case "drained", "draining":
			add("note", "Listener %s %s is %s: hosts cannot connect there.", l.Transport,
				l.Address, l.State)
		}
	}
	for _, g := range s.Groups {
		name := fmt.Sprintf("ANA group %d", g.ANAGroup)
		switch {
		case g.Problem != "":
			add("warning", "%s of gateways: %s.", name, strings.TrimSuffix(g.Problem, "."))
		case g.Holder == "" && g.State != "joining": // or it is not known yet
			add("warning", "No gateway serves %s.", name)
		}
		if len(g.Differences) > 0 {
			add("warning", "%s of gateways: %s.", name, strings.TrimSuffix(g.Differences[0], "."))
		}
		if g.Drained {
			add("note", "%s was given away here, and this gateway does not take it.", name)
		}
	}
	switch {
	case s.Plan.Error != "":
		add("warning", "The configuration file cannot be applied as it is now; see "+
			"Configuration below.")
	case len(s.Plan.Changes) > 0:
		add("note", "The configuration file differs from the running configuration: %s.",
			count(len(s.Plan.Changes)+s.More["changes"], "change"))
	}
	s.logFindings(add)
	for _, what := range slices.Sorted(maps.Keys(s.Errors)) { // in a stable order
		add("warning", "The page does not know all (%s): %s.", what,
			strings.TrimSuffix(s.Errors[what], "."))
	}
	more := s.loadFindings(add)
	slices.SortStableFunc(list, func(a, b finding) int {
		return cmp.Compare(slices.Index(severities, a.Severity),
			slices.Index(severities, b.Severity))
	})
	shown := min(len(list), maxFindings)
	if more += len(list) - shown; more > 0 {
		list = append(list[:shown], finding{"note", fmt.Sprintf("And %d more.", more)})
	}
	return append([]finding{}, list...)
}

func (s *state) storageFindings(add func(severity, format string, args ...any)) {
	bad := 0
	for _, n := range s.Namespaces {
		if n.State != "ready" && n.State != "standby" {
			if bad++; bad > maxAlike {
				continue
			}
		}
		name := fmt.Sprintf("Namespace %d of %s", n.NSID, n.Subsystem)
		switch n.State {
		case "not ready":
			add("error", "%s is not ready: its storage does not answer.", name)
		case "degraded":
			add("error", "%s is degraded: accepted writes may be lost.", name)
		case "pending":
			add("error", "%s is not served: its storage is not there.", name)
		case "paused":
			add("warning", "%s is paused: commands wait.", name)
		}
		errors := uint64(0)
		for _, count := range n.Errors {
			errors += count
		}
		if errors+n.Timeouts > 0 {
			add("note", "%s: %s of the storage and %s since it was added.", name,
				count(errors, "error"), count(n.Timeouts, "timeout"))
		}
	}
	bad = len(s.Namespaces) + s.More["namespaces"] - s.Traffic.Ready
	if more := bad - maxAlike; more > 0 { // to leave room for other findings
		add("error", "More namespaces that are not ready: %d.", more)
	}
	for _, d := range s.Disks {
		if isBad(&d) {
			severity := "warning"
			if d.Health.State == "failing" {
				severity = "error"
			}
			add(severity, "Disk %s reports: %s.", d.Name, strings.Join(d.Health.Notes, "; "))
		}
	}
}

func (s *state) logFindings(add func(severity, format string, args ...any)) {
	errors, latest, since := 0, "", s.Time.Add(-recently)
	for _, e := range s.Events {
		if e.Level == "ERROR" && e.Time.After(since) {
			if errors++; errors == 1 {
				latest = e.Message
			}
		}
	}
	if errors > 0 {
		add("warning", "The log has %s of the last 10 minutes; the last one: %s.",
			count(errors, "error"), latest)
	}
	refused := 0
	for _, r := range s.Refusals {
		if r.Last.After(since) {
			refused++
		}
	}
	if refused > 0 {
		add("warning", "Different refusals of peers in the last 10 minutes: %d; see Refusals "+
			"below.", refused)
	}
}

// loadFindings adds the findings of doctor, and returns the number left out.
func (s *state) loadFindings(add func(severity, format string, args ...any)) (more int) {
	alike := map[string]int{}
	for _, f := range s.load {
		if alike[f.Check]++; alike[f.Check] > maxAlike {
			more++
			continue
		}
		add(string(f.Severity), "%s%s. %s Fix: %s.", strings.ToUpper(f.Found[:1]), f.Found[1:],
			f.Why, f.Fix)
	}
	return more
}

// count formats a number of things.
func count[T int | uint64](n T, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}
