package app

import (
	"github.com/nvmf-target/nvmf-target/config"
	"github.com/nvmf-target/nvmf-target/internal/httpd"
	"github.com/nvmf-target/nvmf-target/internal/web"
)

// setWeb serves the page as configured, or not at all.
func (s *Server) setWeb(c *config.Config) error {
	src := web.Source{Source: s.source(), Plan: s.engine.TryPlan}
	src.Latency = s.latencyStates(latencySummary)
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
