package target

import (
	"slices"

	"github.com/nvmf-target/nvmf-target/nvme/target/admin"
	"github.com/nvmf-target/nvmf-target/nvme/target/controllers"
	"github.com/nvmf-target/nvmf-target/nvme/target/namespaces"
)

// CheckHealth reads the health of all drives, and sends an asynchronous event for each critical
// warning that was not set at the last call, and for each temperature threshold that was reached
// since, to hosts that have enabled it and use the drive (Base section 5.1.2). It also asks for the
// space of thin namespaces. It may block for admin.AnswerWait; one goroutine calls it,
// periodically.
func (t *Target) CheckHealth() {
	table := *t.table.Load()
	var queries []admin.Asker
	for _, s := range table {
		list := s.Namespaces.Load().List
		queries = append(queries, controllers.DriveQueries(list)...)
		for _, ns := range list {
			if q := ns.Thin(); q != nil {
				queries = append(queries, q)
			}
		}
	}
	admin.AwaitAll(queries)
	for _, s := range table {
		drives := slices.DeleteFunc(slices.Clone(s.Namespaces.Load().List),
			func(ns *namespaces.Namespace) bool { return ns.Attributes().Drive == nil })
		w, _ := controllers.Warnings(drives)
		if added := w &^ s.warned; added != 0 {
			t.log.Warn("a drive warns", "subsystem", s.NQN, "warning", added)
		}
		s.warned = w
		s.each(func(c *controller) {
			w, temperature := controllers.Warnings(namespaces.Visible(drives, c.HostNQN))
			c.h.post(func() { c.CheckHealth(w, temperature) })
		})
	}
}
