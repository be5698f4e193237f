package app

import (
	"context"
	"fmt"

	"github.com/nvmf-target/nvmf-target/config"
	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/internal/httpd"
	"github.com/nvmf-target/nvmf-target/internal/observed"
	"github.com/nvmf-target/nvmf-target/internal/web"
)

// setWeb serves the page as configured, or not at all.
func (s *Server) setWeb(c *config.Config) error {
	src := web.Source{
		Status: s.status, Listeners: s.listeners.States, Subsystems: s.subsystemStates,
		Namespaces: s.namespaceStates, Refusals: s.recorder.Refusals, Events: s.recorder.Events,
		Connections: s.connections, Latency: s.pageLatencies, Hosts: s.target.Controllers,
		Reactors: s.Reactors,
		Ports:    s.portCounters,
		Disks:    s.disks, Plan: s.engine.TryPlan,
	}
	url, err := s.web.set(s, c, "web", &c.Web, "page request refused",
		func(at httpd.Endpoint) (*web.Server, error) {
			return web.Listen(at, src, webTargets(c), s.log)
		})
	if url != "" {
		s.log.Info("the page is served", "url", url)
	}
	return err
}

// setWebTargets sets the other targets on the page as configured.
func (s *Server) setWebTargets(c *config.Config) error {
	if s.web.server != nil {
		s.web.server.SetTargets(webTargets(c))
	}
	return nil
}

func webTargets(c *config.Config) (list []web.Target) {
	for _, w := range c.WebTargets {
		list = append(list, web.Target{Name: w.Name, URL: w.URL, Token: w.Token, CA: w.CA})
	}
	return list
}

// pageLatencies adds up the latencies of each namespace over hosts and operations, and returns the
// latencies for doctor.Load.
func (s *Server) pageLatencies(ctx context.Context) (list []web.Latency, each []observed.Latency,
	err error,
) {
	all, err := s.target.Latencies(ctx)
	if err != nil {
		return nil, nil, fmt.Errorf("a reactor does not answer: %w", err)
	}
	for _, l := range all { // in the order of namespaces
		last := len(list) - 1
		if last < 0 || list[last].Subsystem != l.SubNQN || list[last].NSID != l.NSID {
			list = append(list, web.Latency{
				Subsystem: l.SubNQN, NSID: l.NSID,
				Counts: map[int]uint64{}, Stages: map[string]uint64{},
			})
			last++
		}
		for ns, n := range l.Total.All() {
			list[last].Counts[web.Bucket(ns)] += n
		}
		for i := range l.Stages {
			list[last].Stages[fabric.Stage(i).String()] += uint64(l.Stages[i].Sum())
		}
		each = append(each, latencySummary(&l))
	}
	return list, each, nil
}
