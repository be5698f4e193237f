diff --git a/nvme/target/access.go b/nvme/target/access.go
index ae82f1cc..91eebe1e 100644
--- a/nvme/target/access.go
+++ b/nvme/target/access.go
@@ -8,6 +8,7 @@ import (
 
 	"github.com/nvmf-target/nvmf-target/fabric"
 	"github.com/nvmf-target/nvmf-target/nvme/target/association"
+	"github.com/nvmf-target/nvmf-target/nvme/target/dispatch"
 )
 
 // This file decides which hosts may have controllers, through which ports, and from where.
@@ -136,7 +137,9 @@ func (t *Target) Settled() <-chan struct{} {
 		}
 	}
 	for _, h := range t.handlers {
-		h.post(answer)
+		h.post(func() { // after the walks of onReactors
+			h.dispatch.Start(&dispatch.Walk{Next: func() int { return 0 }, Done: answer})
+		})
 	}
 	answer()
 	return done
diff --git a/nvme/target/ana.go b/nvme/target/ana.go
index 256b0be1..d24bd3fe 100644
--- a/nvme/target/ana.go
+++ b/nvme/target/ana.go
@@ -46,7 +46,7 @@ func (s *subsystem) anaChanged(port uint16, before, now *ana.States) {
 		return
 	}
 	s.each(func(c *controller) {
-		has := func(ns *namespace) bool { return ns.cfg.Load().visible(c.hostNQN) }
+		has := func(ns *namespace) bool { return ns.Attributes().Visible(c.hostNQN) }
 		switch {
 		case c.info.PortID != port:
 		case slices.ContainsFunc(revived, has):
@@ -63,7 +63,7 @@ func (c *controller) anaChanged(now []nvme.ANAGroup) {
 	c.raise(admin.EventANA)
 }
 
-func (ns *namespace) anaGroup() uint32 { return ns.cfg.Load().anaGroup }
+func (ns *namespace) anaGroup() uint32 { return ns.Attributes().ANAGroup }
 
 // anaStates returns the states of the port of the controller, which are in force until they change.
 func (c *controller) anaStates() *ana.States { return c.admin.port.ana.Load() }
@@ -115,8 +115,8 @@ func (a *anaGroups) next() int {
 	const most = 16
 	n := min(len(a.list), most)
 	for _, ns := range a.list[:n] {
-		if cfg := ns.cfg.Load(); cfg.visible(a.c.hostNQN) {
-			a.members.Add(cfg.anaGroup, ns.nsid)
+		if cfg := ns.Attributes(); cfg.Visible(a.c.hostNQN) {
+			a.members.Add(cfg.ANAGroup, ns.ID.NSID)
 		}
 	}
 	a.list = a.list[n:]
diff --git a/nvme/target/await.go b/nvme/target/await.go
index e5c6cd78..fea52457 100644
--- a/nvme/target/await.go
+++ b/nvme/target/await.go
@@ -86,7 +86,7 @@ func (h *Handler) change(c *cmd, list []*namespace,
 				},
 			}
 			changes = append(changes, ch)
-			ns.reservations.Submit(ch)
+			ns.Reservations.Submit(ch)
 		}
 		close(submitted)
 	}
diff --git a/nvme/target/channel.go b/nvme/target/channel.go
index 93f1a82f..4f9b9ae5 100644
--- a/nvme/target/channel.go
+++ b/nvme/target/channel.go
@@ -1,8 +1,6 @@
 package target
 
 import (
-	"cmp"
-
 	"github.com/nvmf-target/nvmf-target/backend"
 	"github.com/nvmf-target/nvmf-target/internal/list"
 	"github.com/nvmf-target/nvmf-target/internal/mem"
@@ -30,7 +28,7 @@ func (h *Handler) channelTo(ns *namespace) *channel {
 	}
 	ch := &channel{h: h, ns: ns}
 	ch.User = ch
-	if !h.dispatch.Open(&ch.Channel, &ns.Namespace) {
+	if !h.dispatch.Open(&ch.Channel, &ns.Namespace.Namespace) {
 		return nil
 	}
 	if more := ns.slot + 1 - len(h.channels); more > 0 {
@@ -67,7 +65,7 @@ func (ch *channel) drop(done func()) {
 
 // Submit implements compound.Channel.
 func (ch *channel) Submit(io *backend.IO) nvme.Status {
-	if ch.ns.geo.Load().unready {
+	if ch.ns.Geometry().Unready {
 		return notReady
 	}
 	if !ch.h.submit(ch, io) {
@@ -79,12 +77,12 @@ func (ch *channel) Submit(io *backend.IO) nvme.Status {
 // Orphaned implements compound.Channel.
 func (ch *channel) Orphaned(io *backend.IO) {
 	ch.Channel.Orphaned(io)
-	ch.ns.orphaned(ch.h)
+	ch.ns.Orphaned(ch.h.post)
 }
 
 // OrphanBack implements compound.Channel.
 func (ch *channel) OrphanBack() {
-	ch.ns.returned(ch.h.t.log)
+	ch.ns.Returned()
 	ch.Channel.OrphanBack()
 }
 
@@ -127,39 +125,23 @@ func (h *Handler) ioDone(io *backend.IO) {
 	}
 }
 
-// Name implements dispatch.Storage.
-func (ns *namespace) Name() (nqn string, nsid uint32) { return ns.sub.nqn, ns.nsid }
-
-// Device implements dispatch.Storage.
-func (ns *namespace) Device() backend.Device { return ns.cfg.Load().dev }
-
-// Mark implements dispatch.Storage.
-func (ns *namespace) Mark(dev backend.Channel, wake func()) backend.Channel {
-	if !ns.marks.Begun() {
-		return nil
-	}
-	size := func() int64 { return ns.geo.Load().size() }
-	return ns.marks.Wrap(dev, wake, size, ns.geo.Load().info.Volatile)
-}
-
 // Check implements dispatch.Storage.
 func (ns *namespace) Check(io *backend.IO) error {
-	return cmp.Or(ns.cfg.Load().check(io), ns.geo.Load().check(io))
-}
-
-// check returns the reason why the namespace does not take an IO that it took once.
-func (g *geometry) check(io *backend.IO) error {
-	switch end := g.size(); {
-	case g.info.Offline:
+	s, g := queueOf(io), ns.Geometry()
+	if s != nil && !ns.Attributes().Visible(s.ctrl.hostNQN) {
+		return errHidden
+	}
+	switch end := g.Size(); {
+	case g.Info.Offline:
 		return backend.ErrOffline
 	case io.Op == backend.OpFlush || io.Op == backend.OpRead && io.Off+io.Len <= end:
 		return nil
 	case io.Off+io.Len > end:
 		return backend.ErrOutOfRange
-	case g.readOnly:
+	case g.ReadOnly:
 		return backend.ErrReadOnly
 	}
-	if s := queueOf(io); s != nil && g.info.VolatileCache && s.ctrl.writeThrough.Load() &&
+	if s != nil && g.Info.VolatileCache && s.ctrl.writeThrough.Load() &&
 		io.Op != backend.OpDiscard {
 		io.Flags |= backend.FUA
 	}
diff --git a/nvme/target/compound.go b/nvme/target/compound.go
index 19da0339..028827db 100644
--- a/nvme/target/compound.go
+++ b/nvme/target/compound.go
@@ -128,7 +128,7 @@ func (h *Handler) compareAndWrite(a, b *cmd) {
 	v := a.reads(compound.CompareAndWrite)
 	v.Second, v.Overwrite, v.Flags = b, b.req.Segs, b.io.Flags
 	v.Lock = &dispatch.Lock{
-		Namespace: &a.ch.ns.Namespace, Owner: m, Host: a.s.host.payer.key, Post: h.post,
+		Namespace: &a.ch.ns.Namespace.Namespace, Owner: m, Host: a.s.host.payer.key, Post: h.post,
 		Blocks: backend.Range{Off: a.io.Off, End: a.io.Off + a.io.Len}, OnHeld: v.GoOn,
 	}
 	h.read(a, v)
@@ -160,8 +160,8 @@ func executeDSM(h *Handler, c *cmd) {
 		return
 	}
 	m := h.newCompound(c)
-	dsm, g := c.req.SQE.DSM(), c.ch.ns.geo.Load()
-	discards := dsm.Deallocate() && g.info.Discard // all is advice (NVM section 3.3.3)
+	dsm, g := c.req.SQE.DSM(), c.ch.ns.Geometry()
+	discards := dsm.Deallocate() && g.Info.Discard // all is advice (NVM section 3.3.3)
 	data := mem.NewCursor(c.req.Segs, 0)
 	for range dsm.Ranges() {
 		var r nvme.DSMRange
@@ -169,11 +169,11 @@ func executeDSM(h *Handler, c *cmd) {
 		n := uint64(r.Blocks())
 		switch {
 		case n == 0:
-		case r.SLBA() >= g.blocks || n > g.blocks-r.SLBA():
+		case r.SLBA() >= g.Blocks || n > g.Blocks-r.SLBA():
 			m.Refuse(outOfRange)
 			return
 		case discards:
-			m.Add(int64(r.SLBA()<<g.shift), int64(n<<g.shift))
+			m.Add(int64(r.SLBA()<<g.Shift), int64(n<<g.Shift))
 		}
 	}
 	m.Zero(c.ch, &c.flow.turns, backend.OpDiscard, 0)
@@ -227,19 +227,19 @@ func (f *flush) Step(i int) (compound.Channel, nvme.Status) {
 // Uses implements compound.Flusher.
 func (f *flush) Uses(ch compound.Channel, i int) bool {
 	at := max(i-len(f.list), 0)
-	return at < len(f.list) && f.list[at].nsid <= ch.(*channel).ns.nsid
+	return at < len(f.list) && f.list[at].ID.NSID <= ch.(*channel).ns.ID.NSID
 }
 
 // flushes reports whether a Flush of all namespaces flushes one of them. The status is the reason
 // why all of it fails if not; it is Success if the host does not see the namespace.
 func (c *cmd) flushes(ns *namespace) (bool, nvme.Status) {
 	host := c.s.ctrl.identity
-	a := ns.reservations.Access()
+	a := ns.Reservations.Access()
 	st := c.s.port.ana.Load().Of(ns.anaGroup()).Status()
 	switch {
 	case !c.flushesAll(): // after a change of the write protection
 		return true, nvme.Success
-	case !ns.cfg.Load().visible(c.s.ctrl.hostNQN):
+	case !ns.Attributes().Visible(c.s.ctrl.hostNQN):
 		return false, nvme.Success
 	case !st.OK():
 		return false, st
diff --git a/nvme/target/controller.go b/nvme/target/controller.go
index 26f8c58c..f7cb2f6c 100644
--- a/nvme/target/controller.go
+++ b/nvme/target/controller.go
@@ -18,6 +18,7 @@ import (
 	"github.com/nvmf-target/nvmf-target/nvme/target/admin"
 	"github.com/nvmf-target/nvmf-target/nvme/target/association"
 	"github.com/nvmf-target/nvmf-target/nvme/target/authn"
+	"github.com/nvmf-target/nvmf-target/nvme/target/dispatch"
 	"github.com/nvmf-target/nvmf-target/nvme/target/reservation"
 )
 
@@ -155,16 +156,37 @@ func (c *controller) fail(why error) {
 
 // disconnectSessions ends queues, each on its own reactor.
 func disconnectSessions(list []*session, why error) {
-	for _, s := range list { // bound: MaxIOQueues
-		s.h.post(func() { s.disconnect(why) })
-	}
+	onReactors(list, func(s *session) { s.disconnect(why) })
 }
 
 // stopIO ends the work of the queues at devices.
 func (c *controller) stopIO() {
-	// The admin queue reads for self-tests.
-	for _, s := range c.allQueues() { // bound: MaxIOQueues
-		s.h.post(s.stop)
+	onReactors(c.allQueues(), (*session).stop) // the admin queue reads for self-tests
+}
+
+// onReactors has the reactors of queues call fn, which looks at the commands of a queue. They do so
+// in walks, and so before Target.Settled. Any goroutine.
+func onReactors(list []*session, fn func(*session)) {
+	for len(list) > 0 { // bound: reactors
+		h := list[0].h
+		own := list[:0:0]
+		list = slices.DeleteFunc(list, func(s *session) bool { // bound: MaxIOQueues
+			if s.h == h {
+				own = append(own, s)
+			}
+			return s.h == h
+		})
+		h.post(func() {
+			h.dispatch.Start(&dispatch.Walk{Done: func() {}, Next: func() int {
+				if len(own) == 0 {
+					return 0
+				}
+				s := own[0]
+				own = own[1:]
+				fn(s)
+				return s.looks()
+			}})
+		})
 	}
 }
 
diff --git a/nvme/target/copy.go b/nvme/target/copy.go
index a0d59264..bf4a5bbf 100644
--- a/nvme/target/copy.go
+++ b/nvme/target/copy.go
@@ -5,6 +5,7 @@ import (
 	"github.com/nvmf-target/nvmf-target/internal/mem"
 	"github.com/nvmf-target/nvmf-target/nvme"
 	"github.com/nvmf-target/nvmf-target/nvme/target/compound"
+	"github.com/nvmf-target/nvmf-target/nvme/target/namespaces"
 )
 
 // The limits of a Copy command (NVM section 4.1.5.1): MSRC ranges, MSSRL blocks in each of them,
@@ -14,9 +15,9 @@ const (
 	copyRanges = nvme.MaxCopyRanges
 )
 
-func (g *geometry) mcl() uint32 { return copyLimit >> g.shift }
+func mcl(g *namespaces.Geometry) uint32 { return copyLimit >> g.Shift }
 
-func (g *geometry) mssrl() uint16 { return uint16(min(g.mcl(), 0xFFFF)) }
+func mssrl(g *namespaces.Geometry) uint16 { return uint16(min(mcl(g), 0xFFFF)) }
 
 // copyFormats are the formats of source ranges that are supported (CDFS).
 var copyFormats = nvme.CopyRanges.Bit() | nvme.CopyNamespaces.Bit()
@@ -68,7 +69,7 @@ func executeCopy(h *Handler, c *cmd) {
 		data.CopyTo(r[:])
 		x, st := c.copySource(&r)
 		total += uint64(r.Blocks())
-		if st.OK() && total > uint64(c.ch.ns.geo.Load().mcl()) {
+		if st.OK() && total > uint64(mcl(c.ch.ns.Geometry())) {
 			st = copyTooLarge
 		}
 		if !st.OK() {
@@ -106,30 +107,30 @@ func (c *cmd) copySource(r *nvme.CopyRange) (compound.Extent, nvme.Status) {
 	if a := ch.Access; a != nil && !a.Permits(c.s.ctrl.identity, groupRead) {
 		return compound.Extent{}, reservationConflict
 	}
-	g, n := ch.ns.geo.Load(), uint64(r.Blocks())
+	g, n := ch.ns.Geometry(), uint64(r.Blocks())
 	switch {
-	case g.unready:
+	case g.Unready:
 		return compound.Extent{}, notReady
-	case g.shift != c.ch.ns.geo.Load().shift, ch != c.ch && ch.ns.cfg.Load().limiter != nil:
+	case g.Shift != c.ch.ns.Geometry().Shift, ch != c.ch && ch.ns.Attributes().Limiter != nil:
 		return compound.Extent{}, copyIncompatible // reads do not wait at limits of others
-	case n > uint64(g.mssrl()):
+	case n > uint64(mssrl(g)):
 		return compound.Extent{}, copyTooLarge
-	case r.SLBA() >= g.blocks || n > g.blocks-r.SLBA():
+	case r.SLBA() >= g.Blocks || n > g.Blocks-r.SLBA():
 		return compound.Extent{}, outOfRange
 	}
 	return compound.Extent{
-		Channel: ch, Off: int64(r.SLBA() << g.shift), Len: int64(n << g.shift),
+		Channel: ch, Off: int64(r.SLBA() << g.Shift), Len: int64(n << g.Shift),
 	}, nvme.Success
 }
 
 // copyDestination checks where the ranges are copied to.
 func (c *cmd) copyDestination(v *compound.Read, total uint64) nvme.Status {
-	g, slba := c.ch.ns.geo.Load(), c.req.SQE.SLBA()
-	if slba >= g.blocks || total > g.blocks-slba {
+	g, slba := c.ch.ns.Geometry(), c.req.SQE.SLBA()
+	if slba >= g.Blocks || total > g.Blocks-slba {
 		return outOfRange
 	}
-	v.To = int64(slba << g.shift)
-	end := v.To + int64(total<<g.shift)
+	v.To = int64(slba << g.Shift)
+	end := v.To + int64(total<<g.Shift)
 	for _, x := range v.From {
 		if x.Channel == c.ch && x.Off < end && v.To < x.Off+x.Len {
 			return copyOverlaps
diff --git a/nvme/target/delay.go b/nvme/target/delay.go
index dd45fd0f..cc09832a 100644
--- a/nvme/target/delay.go
+++ b/nvme/target/delay.go
@@ -3,17 +3,18 @@ package target
 import (
 	"github.com/nvmf-target/nvmf-target/internal/list"
 	"github.com/nvmf-target/nvmf-target/nvme"
+	"github.com/nvmf-target/nvmf-target/nvme/target/dispatch"
 )
 
 // delayLists are the commands of a reactor that wait for a time.
 type delayLists struct {
-	delayed      delayList // completed after notReadyDelay
-	awaiting     delayList // wait for the answers of queries, for admin.AnswerWait
-	halves       delayList // fused commands that wait for the other one, for pairWait
-	changing     delayList // wait for changes of reservations, for drainDeadline
-	stopTimeouts func()    // stops the timer that looks for timeouts, nil if it does not run
-	timeouts     walk      // looks for timeouts
-	timeoutsLeft bool      // devices may have commands that it has not seen, or that are left
+	delayed      delayList     // completed after notReadyDelay
+	awaiting     delayList     // wait for the answers of queries, for admin.AnswerWait
+	halves       delayList     // fused commands that wait for the other one, for pairWait
+	changing     delayList     // wait for changes of reservations, for drainDeadline
+	stopTimeouts func()        // stops the timer that looks for timeouts, nil if it does not run
+	timeouts     dispatch.Walk // looks for timeouts
+	timeoutsLeft bool          // devices may have commands that it has not seen, or that are left
 }
 
 // notReadyDelay is how long the completion with the status notReady is delayed, in nanoseconds.
diff --git a/nvme/target/discovery.go b/nvme/target/discovery.go
index 243161b4..001bccc6 100644
--- a/nvme/target/discovery.go
+++ b/nvme/target/discovery.go
@@ -126,7 +126,9 @@ func (c *controller) stopRemaking() {
 	}
 }
 
-// discoveryPage makes the requested part of log 70h (Base section 5.1.12.3.1).
+// discoveryPage makes the requested part of log 70h (Base section 5.1.12.3.1). The parts that a
+// host reads are of logs that follow one another in c.discoveryLogs, so GENCTR tells it if these
+// differ.
 func discoveryPage(c *controller, sqe *nvme.SQE) admin.Reply {
 	log, table, host := sqe.GetLog(), c.t.discoveryTable.Load(), c.discoverer()
 	local, off, n := log.LSP()&nvme.DiscoveryLocal != 0, log.LPO(), log.Bytes()
@@ -147,6 +149,6 @@ func discoveryPage(c *controller, sqe *nvme.SQE) admin.Reply {
 		return discovery.NewLog(table, host, local)
 	}, func(l *discovery.Log) admin.Reply {
 		c.discoveryLogs.Take(l)
-		return page(cmp.Or(c.discoveryLogs.Get(table, local), l))
+		return page(c.discoveryLogs.Last(local))
 	})
 }
diff --git a/nvme/target/doc.go b/nvme/target/doc.go
index fdc79e52..48798d41 100644
--- a/nvme/target/doc.go
+++ b/nvme/target/doc.go
@@ -26,8 +26,8 @@
 // function passed to Loop.Post.
 //
 // While hosts are connected, a subsystem and a namespace change by getting another immutable value
-// (update.go). For another device, commands wait on every reactor until no channel uses the old one
-// (package dispatch).
+// (update.go and package namespaces). For another device, commands wait on every reactor until no
+// channel uses the old one (package dispatch).
 //
 // Log pages, features and Identify data structures are rows of tables (admin.go).
 //
diff --git a/nvme/target/errorlog.go b/nvme/target/errorlog.go
index 48dfad7a..eb2aeff1 100644
--- a/nvme/target/errorlog.go
+++ b/nvme/target/errorlog.go
@@ -29,7 +29,7 @@ func (c *cmd) failedLBA(err error) uint64 {
 	if err != nil && c.ch != nil { // refused commands allocate nothing
 		var at *backend.Fault
 		if errors.As(err, &at) {
-			return uint64(at.Off) >> c.ch.ns.geo.Load().shift
+			return uint64(at.Off) >> c.ch.ns.Geometry().Shift
 		}
 	}
 	return c.req.SQE.SLBA()
diff --git a/nvme/target/events.go b/nvme/target/events.go
index afa615bd..4968eb1d 100644
--- a/nvme/target/events.go
+++ b/nvme/target/events.go
@@ -5,6 +5,7 @@ import (
 
 	"github.com/nvmf-target/nvmf-target/nvme"
 	"github.com/nvmf-target/nvmf-target/nvme/target/admin"
+	"github.com/nvmf-target/nvmf-target/nvme/target/namespaces"
 )
 
 // asyncLimit is AERL+1: how many Asynchronous Event Requests a host may have outstanding.
@@ -56,6 +57,18 @@ func asyncEventRequest(h *Handler, cm *cmd) {
 	c.sendEvents()
 }
 
+// notice passes a notice of a namespace to the host. Admin reactor.
+func (c *controller) notice(n namespaces.Notice, nsid uint32) {
+	switch n {
+	case namespaces.Changed:
+		c.namespaceChanged(nsid)
+	case namespaces.Regroups:
+		c.gatherANA(c.anaChanged)
+	case namespaces.Degrades:
+		c.raise(admin.EventReliability)
+	}
+}
+
 func (c *controller) namespaceChanged(nsid uint32) {
 	c.changed.Add(nsid)
 	c.raise(admin.EventNamespace)
diff --git a/nvme/target/execute.go b/nvme/target/execute.go
index 1a8dce7b..ef1cf8f0 100644
--- a/nvme/target/execute.go
+++ b/nvme/target/execute.go
@@ -50,7 +50,7 @@ func executeRead(h *Handler, c *cmd) {
 // executeIO submits the prepared IO.
 func executeIO(h *Handler, c *cmd) {
 	c.io.Segs = c.req.Segs
-	if c.req.InCapsule && c.ch.ns.cfg.Load().timeout > 0 {
+	if c.req.InCapsule && c.ch.ns.Attributes().Timeout > 0 {
 		c.copyCapsule(h)
 	}
 	c.since = h.loop.Now()
diff --git a/nvme/target/features.go b/nvme/target/features.go
index 40a8624e..b7a008ab 100644
--- a/nvme/target/features.go
+++ b/nvme/target/features.go
@@ -8,6 +8,7 @@ import (
 	"github.com/nvmf-target/nvmf-target/internal/mem"
 	"github.com/nvmf-target/nvmf-target/nvme"
 	"github.com/nvmf-target/nvmf-target/nvme/target/admin"
+	"github.com/nvmf-target/nvmf-target/nvme/target/namespaces"
 )
 
 // feature is a feature of a controller.
@@ -256,7 +257,7 @@ func (f *feature) checkNSID(cm *cmd) nvme.Status {
 	switch nsid := cm.req.SQE.NSID(); {
 	case nsid == nvme.NSIDAll, nsid == 0 && f.fsp != nvme.FeatureScopeNamespace:
 		return nvme.Success
-	case f.fsp != nvme.FeatureScopeNamespace && nsid <= MaxNSID:
+	case f.fsp != nvme.FeatureScopeNamespace && nsid <= namespaces.MaxNSID:
 		return nvme.FeatureNotPerNamespace | nvme.DNR // Base section 4.2.3.2, 0Fh
 	case cm.namespace() == nil:
 		return f.noNamespace(nsid)
diff --git a/nvme/target/flow.go b/nvme/target/flow.go
index 1ed77d24..ec2e0d5e 100644
--- a/nvme/target/flow.go
+++ b/nvme/target/flow.go
@@ -169,7 +169,7 @@ func (s *session) flowTo(ch *channel) *flow {
 	}
 	f := &flow{Flow: t.admin, host: t, ch: ch, turns: compound.NewFlow(&t.payer.Owner)}
 	f.Namespace = &ch.share
-	f.latency = s.h.latency.Join(t.nqn, &t.payer.entries, &ch.ns.name)
+	f.latency = s.h.latency.Join(t.nqn, &t.payer.entries, &ch.ns.ID)
 	t.flows[slot] = f
 	s.h.flows.Add(f, &f.place)
 	ch.flows.Push(f, &f.ofChannel)
diff --git a/nvme/target/fused.go b/nvme/target/fused.go
index 4cc57721..7f5db2f9 100644
--- a/nvme/target/fused.go
+++ b/nvme/target/fused.go
@@ -61,7 +61,8 @@ func (c *cmd) prepareFused() nvme.Status {
 	if st := c.op.prepare(c); !st.OK() {
 		return st
 	}
-	if c.io.Len > c.ch.ns.geo.Load().atomicUnit() {
+	// Writes are atomic up to a physical block, or a logical one if that is larger.
+	if g := c.ch.ns.Geometry(); c.io.Len > int64(max(g.Info.PhysicalBlockSize, 1<<g.Shift)) {
 		return nvme.AtomicWriteUnitExceeded | nvme.DNR // ACWU, NACWU (NVM section 4.1.5.1)
 	}
 	if c == c.pair.first && c.limited { // for both, so that they stay together
@@ -70,9 +71,6 @@ func (c *cmd) prepareFused() nvme.Status {
 	return nvme.Success
 }
 
-// atomicUnit is how much one write changes untorn, in bytes.
-func (g *geometry) atomicUnit() int64 { return int64(max(g.info.PhysicalBlockSize, 1<<g.shift)) }
-
 // executeFused starts the pair if both commands are here.
 func (h *Handler) executeFused(c *cmd) {
 	p := c.pair
diff --git a/nvme/target/handler.go b/nvme/target/handler.go
index 9d7b1c18..ddb4bef3 100644
--- a/nvme/target/handler.go
+++ b/nvme/target/handler.go
@@ -25,7 +25,7 @@ type HandlerConfig struct {
 	Index int
 	// Memory is the reactor's data memory. Transports supply the memory of commands; the handler
 	// allocates only for copies of in-capsule data, which a device may use for longer than the
-	// queue can keep the receive buffer; see NamespaceConfig.Timeout.
+	// queue can keep the receive buffer; see namespaces.Config.Timeout.
 	Memory *mem.Pool
 	// EventFD is an eventfd that wakes the reactor, which devices pass to the kernel; 0 if there is
 	// none.
@@ -52,7 +52,6 @@ type Handler struct {
 	latency   observe.Latencies
 	gate      *qos.Gate
 	compounds *compound.Pool
-	walkLists
 
 	delayLists
 }
@@ -203,7 +202,7 @@ func (h *Handler) disconnect(why error, selects func(*session) bool) {
 			return 1
 		}
 		s.disconnect(why)
-		return 1 + len(s.cmds)
+		return s.looks()
 	}), func() {})
 }
 
diff --git a/nvme/target/health.go b/nvme/target/health.go
index f1167e24..a6473223 100644
--- a/nvme/target/health.go
+++ b/nvme/target/health.go
@@ -2,34 +2,13 @@ package target
 
 import (
 	"slices"
-	"time"
 
-	"github.com/nvmf-target/nvmf-target/backend"
 	"github.com/nvmf-target/nvmf-target/nvme"
 	"github.com/nvmf-target/nvmf-target/nvme/target/admin"
 	"github.com/nvmf-target/nvmf-target/nvme/target/dispatch"
+	"github.com/nvmf-target/nvmf-target/nvme/target/namespaces"
 )
 
-// health is the health of a namespace, as its drive has last answered. It does not block.
-func (ns *namespace) health() admin.Health {
-	total := ns.Total()
-	h := admin.Health{Degraded: ns.isDegraded(), Totals: totals(&total)}
-	if d := ns.cfg.Load().drive; d != nil {
-		h.Drive = d
-		h.Log, _, _ = d.Peek()
-	}
-	return h
-}
-
-// totals are the counters that health logs have.
-func totals(t *dispatch.Counters) admin.Totals {
-	return admin.Totals{
-		Sectors: [2]uint64(t[dispatch.Sectors:]),
-		Reads:   t[backend.OpRead], Writes: t[backend.OpWrite],
-		MediaErrors: t[dispatch.Errors+errorIO], Busy: time.Duration(t[dispatch.Busy]),
-	}
-}
-
 // healthPage makes log 02h of one namespace, or of all that the host may use.
 func healthPage(c *controller, sqe *nvme.SQE) admin.Reply {
 	page := func(l *nvme.SMARTLog) []byte {
@@ -64,9 +43,9 @@ func (c *controller) health(n *counted, page func(*nvme.SMARTLog) []byte) admin.
 		return admin.Elsewhere(func() *nvme.SMARTLog {
 			health := make([]admin.Health, len(n.list))
 			for i, ns := range n.list {
-				health[i] = ns.health()
+				health[i] = ns.Health()
 			}
-			return admin.SMART(health, totals(&n.removed), failures, c.t.started)
+			return admin.SMART(health, namespaces.Totals(&n.removed), failures, c.t.common.Started)
 		}, func(l *nvme.SMARTLog) admin.Reply { return admin.Reply{Data: page(l)} })
 	}
 	if len(n.queries) > 0 {
@@ -78,7 +57,7 @@ func (c *controller) health(n *counted, page func(*nvme.SMARTLog) []byte) admin.
 // driveQueries are the queries for the health of the namespaces' drives.
 func driveQueries(list []*namespace) (queries []admin.Asker) {
 	for _, ns := range list {
-		if d := ns.cfg.Load().drive; d != nil {
+		if d := ns.Attributes().Drive; d != nil {
 			queries = append(queries, d)
 		}
 	}
@@ -97,7 +76,7 @@ func (t *Target) CheckHealth() {
 		list := s.namespaces.Load().list
 		queries = append(queries, driveQueries(list)...)
 		for _, ns := range list {
-			if q := ns.thin(); q != nil {
+			if q := ns.Thin(); q != nil {
 				queries = append(queries, q)
 			}
 		}
@@ -105,7 +84,7 @@ func (t *Target) CheckHealth() {
 	admin.AwaitAll(queries)
 	for _, s := range table {
 		drives := slices.DeleteFunc(slices.Clone(s.namespaces.Load().list),
-			func(ns *namespace) bool { return ns.cfg.Load().drive == nil })
+			func(ns *namespace) bool { return ns.Attributes().Drive == nil })
 		w, _ := warnings(drives)
 		if added := w &^ s.warned; added != 0 {
 			t.log.Warn("a drive warns", "subsystem", s.nqn, "warning", added)
@@ -122,7 +101,7 @@ func (t *Target) CheckHealth() {
 // the highest temperature in kelvin, 0 if none is known.
 func warnings(list []*namespace) (w uint8, temperature uint16) {
 	for _, ns := range list {
-		if d := ns.cfg.Load().drive; d != nil {
+		if d := ns.Attributes().Drive; d != nil {
 			if l, _, _ := d.Peek(); l != nil {
 				w |= l.CriticalWarning
 				temperature = max(temperature, l.Temperature)
@@ -171,10 +150,10 @@ func onRotational(c *controller) bool { return c.rotational }
 
 // enduranceGroup is ENDGID of a namespace, 0 if it is in no group.
 func (c *controller) enduranceGroup(ns *namespace) uint16 {
-	if !c.rotational || !ns.geo.Load().info.Rotational {
+	if !c.rotational || !ns.Geometry().Info.Rotational {
 		return 0
 	}
-	return uint16(ns.nsid)
+	return uint16(ns.ID.NSID)
 }
 
 // group is the namespace that is an endurance group, nil if there is none with this identifier.
@@ -193,7 +172,7 @@ func enduranceGroupPage(c *controller, sqe *nvme.SQE) admin.Reply {
 		return admin.Refused
 	}
 	return c.health(countedOf(ns), func(s *nvme.SMARTLog) []byte {
-		return admin.EnduranceGroup(s, uint64(ns.geo.Load().size()))
+		return admin.EnduranceGroup(s, uint64(ns.Geometry().Size()))
 	})
 }
 
diff --git a/nvme/target/identify.go b/nvme/target/identify.go
index 4446e564..d9374795 100644
--- a/nvme/target/identify.go
+++ b/nvme/target/identify.go
@@ -6,6 +6,7 @@ import (
 	"github.com/nvmf-target/nvmf-target/nvme"
 	"github.com/nvmf-target/nvmf-target/nvme/target/admin"
 	"github.com/nvmf-target/nvmf-target/nvme/target/ana"
+	"github.com/nvmf-target/nvmf-target/nvme/target/namespaces"
 )
 
 // identifyRow is an Identify data structure.
@@ -67,7 +68,7 @@ func identifyController(c *controller, _ *nvme.SQE) admin.Reply {
 		ELPE: admin.ErrorLogSize - 1, KAS: admin.KeepAliveGranularity,
 		OACS: nvme.OACSSelfTest,
 		SQES: 0x66, CQES: 0x44, MAXCMD: uint16(min(c.entries(), 0xFFFF)),
-		NN: MaxNSID, MNAN: MaxNSID,
+		NN: namespaces.MaxNSID, MNAN: namespaces.MaxNSID,
 		ONCS:  oncs(c) | nvme.ONCSSaveSelect | nvme.ONCSTimestamp,
 		FUSES: nvme.FUSESCompareWrite, CDFS: copyFormats,
 		VWC:  nvme.VWCFlushAll,
@@ -93,7 +94,7 @@ func identifyController(c *controller, _ *nvme.SQE) admin.Reply {
 	id.ANAGRPMAX, id.NANAGRPID = ana.MaxGroups, ana.MaxGroups
 	if c.rotational {
 		id.CTRATT |= nvme.CTRATTEnduranceGroups
-		id.ENDGIDMAX = MaxNSID
+		id.ENDGIDMAX = namespaces.MaxNSID
 	}
 	if c.info.InCapsuleSize == 0 {
 		id.SGLS &^= nvme.SGLSOffset
@@ -124,13 +125,13 @@ func identifyController(c *controller, _ *nvme.SQE) admin.Reply {
 
 // viewOf returns the data of a namespace for Identify.
 func (c *controller) viewOf(ns *namespace) *admin.Namespace {
-	g, cfg := ns.geo.Load(), ns.cfg.Load()
+	g, cfg := ns.Geometry(), ns.Attributes()
 	return &admin.Namespace{
-		UUID: cfg.uuid, NGUID: cfg.nguid, EUI64: cfg.eui64, ANAGroup: cfg.anaGroup,
+		UUID: cfg.UUID, NGUID: cfg.NGUID, EUI64: cfg.EUI64, ANAGroup: cfg.ANAGroup,
 		EnduranceGroup: c.enduranceGroup(ns), Reservations: c.reservationCap(),
-		Info: &g.info, Blocks: g.blocks, Shift: g.shift, ReadOnly: g.readOnly, Ready: !g.unready,
-		HidesCapacity: c.anaStates().HidesCapacity(cfg.anaGroup),
-		MSSRL:         g.mssrl(), MCL: g.mcl(), MSRC: copyRanges - 1,
+		Info: &g.Info, Blocks: g.Blocks, Shift: g.Shift, ReadOnly: g.ReadOnly, Ready: !g.Unready,
+		HidesCapacity: c.anaStates().HidesCapacity(cfg.ANAGroup),
+		MSSRL:         mssrl(g), MCL: mcl(g), MSRC: copyRanges - 1,
 	}
 }
 
@@ -141,14 +142,14 @@ func identifyNamespace(c *controller, sqe *nvme.SQE) admin.Reply {
 	if ns == nil {
 		return admin.Reply{Status: st}
 	}
-	id, q := c.viewOf(ns), ns.thin()
+	id, q := c.viewOf(ns), ns.Thin()
 	if q == nil {
 		return admin.Reply{Data: id.Identify(-1)}
 	}
 	return admin.Reply{Queries: []admin.Asker{q}, Build: func() admin.Reply {
 		id.HidesCapacity = c.anaStates().HidesCapacity(ns.anaGroup())
 		if sp, _, err := q.Peek(); sp != nil && err == nil {
-			return admin.Reply{Data: id.Identify(sp.allocated)}
+			return admin.Reply{Data: id.Identify(sp.Allocated)}
 		}
 		return admin.Reply{Data: id.Identify(-1)}
 	}}
@@ -158,7 +159,7 @@ func identifyNamespace(c *controller, sqe *nvme.SQE) admin.Reply {
 // inactive. It returns nil and Success for an inactive namespace.
 func (c *controller) identified(nsid uint32) (*namespace, nvme.Status) {
 	// FFFFFFFFh too: there is no namespace management, so there are no common capabilities
-	if nsid == 0 || nsid > MaxNSID {
+	if nsid == 0 || nsid > namespaces.MaxNSID {
 		return nil, invalidNamespace
 	}
 	return c.namespace(nsid), nvme.Success
@@ -174,8 +175,8 @@ func identifyActive(c *controller, sqe *nvme.SQE) admin.Reply {
 	return admin.Page(func() []byte {
 		var ids []uint32
 		for _, ns := range c.namespaces() {
-			if ns.nsid > nsid {
-				ids = append(ids, ns.nsid)
+			if ns.ID.NSID > nsid {
+				ids = append(ids, ns.ID.NSID)
 			}
 		}
 		return nvme.AppendNamespaceList(nil, ids)
@@ -227,7 +228,7 @@ func identifyAttached(c *controller, sqe *nvme.SQE) admin.Reply {
 	if ns == nil {
 		return admin.Reply{Status: noNamespace(nsid)}
 	}
-	return c.listControllers(sqe, ns.cfg.Load().visible)
+	return c.listControllers(sqe, ns.Attributes().Visible)
 }
 
 // identifyControllers makes CNS 13h: all controllers but the unproven ones (Base section
@@ -258,7 +259,7 @@ func identifyEnduranceGroups(c *controller, sqe *nvme.SQE) admin.Reply {
 	return admin.Page(func() []byte {
 		var ids []uint16
 		for _, ns := range c.namespaces() {
-			if id := uint16(ns.nsid); ns.geo.Load().info.Rotational && id >= first {
+			if id := uint16(ns.ID.NSID); ns.Geometry().Info.Rotational && id >= first {
 				ids = append(ids, id)
 			}
 		}
diff --git a/nvme/target/io.go b/nvme/target/io.go
index e5d80b5a..4c8fbb01 100644
--- a/nvme/target/io.go
+++ b/nvme/target/io.go
@@ -6,6 +6,7 @@ import (
 	"github.com/nvmf-target/nvmf-target/backend"
 	"github.com/nvmf-target/nvmf-target/fabric"
 	"github.com/nvmf-target/nvmf-target/nvme"
+	"github.com/nvmf-target/nvmf-target/nvme/target/namespaces"
 )
 
 // mdts is MDTS, a power of two in units of 4 KiB (CAP.MPSMIN).
@@ -57,31 +58,31 @@ func prepareFlush(c *cmd) nvme.Status {
 }
 
 // extent validates SLBA and NLB and fills in the IO. Nothing is multiplied before it is in range.
-func (c *cmd) extent(op backend.Op) (*geometry, nvme.Status) {
+func (c *cmd) extent(op backend.Op) (*namespaces.Geometry, nvme.Status) {
 	g, st := c.bind()
 	if !st.OK() {
 		return nil, st
 	}
 	sqe := &c.req.SQE
 	slba, nlb := sqe.SLBA(), uint64(sqe.NLB())
-	if slba >= g.blocks || nlb > g.blocks-slba {
+	if slba >= g.Blocks || nlb > g.Blocks-slba {
 		return nil, outOfRange
 	}
 	c.io.Op, c.io.Flags = op, 0
-	c.io.Off, c.io.Len = int64(slba<<g.shift), int64(nlb<<g.shift)
+	c.io.Off, c.io.Len = int64(slba<<g.Shift), int64(nlb<<g.Shift)
 	return g, nvme.Success
 }
 
 // bind finds the namespace of the command and this reactor's channel to it, and opens one if there
 // is none. The command keeps the channel: if the namespace is replaced while data moves, Execute
 // fails and the new namespace is not touched.
-func (c *cmd) bind() (*geometry, nvme.Status) {
+func (c *cmd) bind() (*namespaces.Geometry, nvme.Status) {
 	ns := c.namespace()
 	if ns == nil {
 		return nil, noNamespace(c.req.SQE.NSID())
 	}
-	g := ns.geo.Load()
-	if g.unready {
+	g := ns.Geometry()
+	if g.Unready {
 		return nil, notReady
 	}
 	if c.ch = c.s.h.channelTo(ns); c.ch == nil {
@@ -90,7 +91,7 @@ func (c *cmd) bind() (*geometry, nvme.Status) {
 	if a := c.ch.Access; a != nil && !a.Permits(c.s.ctrl.identity, c.op.group) {
 		return nil, reservationConflict
 	}
-	if g.readOnly && c.op.changes != changeNone && c.op.changes.apply(c) {
+	if g.ReadOnly && c.op.changes != changeNone && c.op.changes.apply(c) {
 		return nil, writeProtected
 	}
 	f := c.s.flowTo(c.ch)
@@ -108,8 +109,8 @@ func (g change) apply(c *cmd) bool {
 }
 
 // durable decides whether the write must be durable when it completes.
-func (c *cmd) durable(g *geometry, flags nvme.RWFlags) {
-	if flags&nvme.RWFUA != 0 || g.info.VolatileCache && c.s.ctrl.writeThrough.Load() {
+func (c *cmd) durable(g *namespaces.Geometry, flags nvme.RWFlags) {
+	if flags&nvme.RWFUA != 0 || g.Info.VolatileCache && c.s.ctrl.writeThrough.Load() {
 		c.io.Flags |= backend.FUA
 	}
 }
diff --git a/nvme/target/limits.go b/nvme/target/limits.go
index b6c38ccd..cfe838b1 100644
--- a/nvme/target/limits.go
+++ b/nvme/target/limits.go
@@ -43,7 +43,7 @@ func (t *Target) Limits() []qos.Info {
 	for _, s := range *t.table.Load() {
 		add(s.settings.Load().limiter, qos.Object{SubNQN: s.nqn})
 		for _, ns := range s.namespaces.Load().list {
-			add(ns.cfg.Load().limiter, qos.Object{SubNQN: s.nqn, NSID: ns.nsid})
+			add(ns.Attributes().Limiter, qos.Object{SubNQN: s.nqn, NSID: ns.ID.NSID})
 		}
 	}
 	slices.SortFunc(list, func(a, b qos.Info) int {
diff --git a/nvme/target/logs.go b/nvme/target/logs.go
index c380aaa7..36afb97a 100644
--- a/nvme/target/logs.go
+++ b/nvme/target/logs.go
@@ -7,6 +7,7 @@ import (
 	"github.com/nvmf-target/nvmf-target/nvme/target/admin"
 	"github.com/nvmf-target/nvmf-target/nvme/target/ana"
 	"github.com/nvmf-target/nvmf-target/nvme/target/discovery"
+	"github.com/nvmf-target/nvmf-target/nvme/target/namespaces"
 	"github.com/nvmf-target/nvmf-target/nvme/target/reservation"
 )
 
@@ -83,7 +84,7 @@ func init() {
 		nvme.LogEnduranceGroup: {
 			scope: onRotational, page: enduranceGroupPage, size: nvme.EnduranceGroupLogSize,
 		},
-		nvme.LogANA:            {scope: onIO, page: anaPage, size: ana.LogSize(MaxNSID)},
+		nvme.LogANA:            {scope: onIO, page: anaPage, size: ana.LogSize(namespaces.MaxNSID)},
 		nvme.LogFeatureEffects: {page: featureEffectsPage, size: nvme.FeatureEffectsSize},
 		nvme.LogMIEffects:      {page: emptyPage, size: miEffectsSize},
 		nvme.LogRotationalMedia: {
diff --git a/nvme/target/namespace.go b/nvme/target/namespace.go
index 120251f6..129788f8 100644
--- a/nvme/target/namespace.go
+++ b/nvme/target/namespace.go
@@ -1,204 +1,59 @@
 package target
 
 import (
-	"cmp"
-	"crypto/sha256"
-	"encoding/hex"
-	"errors"
-	"fmt"
-	"math/bits"
 	"slices"
-	"sync"
 	"sync/atomic"
-	"time"
 
-	"github.com/google/uuid"
-
-	"github.com/nvmf-target/nvmf-target/backend"
-	"github.com/nvmf-target/nvmf-target/nvme/target/admin"
-	"github.com/nvmf-target/nvmf-target/nvme/target/ana"
-	"github.com/nvmf-target/nvmf-target/nvme/target/dispatch"
-	"github.com/nvmf-target/nvmf-target/nvme/target/observe"
-	"github.com/nvmf-target/nvmf-target/nvme/target/qos"
+	"github.com/nvmf-target/nvmf-target/nvme/target/namespaces"
 )
 
-// NamespaceConfig describes a namespace.
-type NamespaceConfig struct {
-	// NSID is 1 to MaxNSID.
-	NSID uint32
-	// Device is the storage, open. The target does not close it.
-	Device backend.Device
-	// UUID, NGUID and EUI64 identify the namespace to hosts and are the same on every path. If all
-	// are zero, UUID and NGUID are derived from the subsystem NQN and the NSID.
-	UUID  uuid.UUID
-	NGUID [16]byte
-	EUI64 [8]byte
-	// Drive is the hardware that holds Device. Hosts read its health. It is nil if there is none,
-	// or if Device shares it with other things.
-	Drive admin.Drive
-	// ReadOnly refuses writes even if the device would accept them.
-	ReadOnly bool
-	// Hosts are the NQNs of the hosts of the subsystem that may use the namespace; empty: all.
-	Hosts []string
-	// Timeout is how long the device may take for a command before the command is given up; 0 means
-	// no limit.
-	Timeout time.Duration
-	// Limits are the limits of all hosts together.
-	Limits qos.Limits
-	// ANAGroup is 1 to ana.MaxGroups, 1 if zero. See SetANAStates.
-	ANAGroup uint32
-}
-
-// MaxNSID is NN of Identify Controller: the largest namespace identifier.
-const MaxNSID = 8192
-
-// identifierSpace is the UUID name space in which identifiers are derived; it must never change.
-var identifierSpace = uuid.NewSHA1(uuid.NameSpaceURL,
-	[]byte("https://github.com/nvmf-target/nvmf-target/namespace"))
-
-// derivedSerial is a stable serial number for a subsystem.
-func derivedSerial(nqn string) string {
-	sum := sha256.Sum256([]byte(nqn))
-	return hex.EncodeToString(sum[:10])
-}
-
-// namespace is a namespace of one subsystem. It is immutable but for fields that are atomic or have
-// a lock.
+// namespace is a namespace of one subsystem.
 type namespace struct {
-	dispatch.Namespace
-	sub  *subsystem
-	nsid uint32
-	name observe.Namespace
-	slot int // index of this namespace's channel in every Handler
-
-	cfg           atomic.Pointer[attributes] // written with state.mu held
-	updating      sync.Mutex                 // held while it changes
-	paused        atomic.Bool                // see PauseNamespace; written with updating held
-	geo           atomic.Pointer[geometry]
-	state         namespaceState
-	*promises                   // of the NQN and NSID
+	namespaces.Namespace
+	sub           *subsystem
+	slot          int           // index of this namespace's channel in every Handler
 	errorRecovery atomic.Uint32 // as hosts have set it
-	// failureLogged is when a failed IO was last logged, by index of ioErrors; 0: never.
-	failureLogged [len(ioErrors)]atomic.Int64
-}
-
-// attributes are the properties that UpdateNamespace may change. They are immutable.
-type attributes struct {
-	dev  backend.Device
-	uuid uuid.UUID
-	// nguid and eui64 are zero if the namespace has none.
-	nguid [16]byte
-	eui64 [8]byte
-
-	hosts    map[string]bool     // that may use it; nil: all
-	anaGroup uint32              // of ANAGroup
-	readOnly bool                // as configured
-	timeout  int64               // nanoseconds, 0 is none
-	drive    *admin.CachedDrive  // nil if there is none
-	space    *admin.Query[space] // nil if dev cannot tell
-	limits   qos.Limits
-	limiter  *qos.Limiter // nil: no limits
-}
-
-// newAttributes has the attributes of cfg with a device.
-func (s *subsystem) newAttributes(cfg NamespaceConfig, dev backend.Device) *attributes {
-	a := &attributes{
-		dev: dev, uuid: cfg.UUID, nguid: cfg.NGUID, eui64: cfg.EUI64, hosts: setOf(cfg.Hosts),
-		readOnly: cfg.ReadOnly, anaGroup: cmp.Or(cfg.ANAGroup, 1),
-		timeout: cfg.Timeout.Nanoseconds(), drive: admin.NewCachedDrive(cfg.Drive, s.t.log),
-		space: newSpaceQuery(dev), limits: cfg.Limits,
-	}
-	if a.uuid == uuid.Nil && a.nguid == [16]byte{} && a.eui64 == [8]byte{} {
-		a.uuid = uuid.NewSHA1(identifierSpace, fmt.Appendf(nil, "%s\n%d", s.nqn, cfg.NSID))
-		a.nguid = a.uuid
-	}
-	return a
-}
-
-// geometry has the properties of a device that the I/O path uses.
-type geometry struct {
-	blocks   uint64
-	shift    uint8 // log2 of the block size
-	readOnly bool
-	unready  bool // the storage is offline or does not answer
-	info     backend.Info
-}
-
-// size is in bytes.
-func (g *geometry) size() int64 { return int64(g.blocks << g.shift) }
-
-func newGeometry(info backend.Info, readOnly bool) (*geometry, error) {
-	bs := info.BlockSize
-	if bs < 512 || bs&(bs-1) != 0 || bs > MinTransfer {
-		return nil, fmt.Errorf("block size %d: must be a power of two from 512 to %d", bs,
-			MinTransfer)
-	}
-	if info.Size < int64(bs) {
-		return nil, fmt.Errorf("size %d is below one block of %d bytes", info.Size, bs)
-	}
-	shift := uint8(bits.TrailingZeros(uint(bs)))
-	info.Identity = "" // hosts do not see it: another one is no change
-	return &geometry{
-		blocks: uint64(info.Size) >> shift, shift: shift, info: info,
-		readOnly: readOnly || info.ReadOnly,
-	}, nil
 }
 
 // newNamespace makes a namespace that no table lists yet. The caller holds t.mu.
-func (s *subsystem) newNamespace(cfg NamespaceConfig) (*namespace, error) {
-	ns := &namespace{sub: s, nsid: cfg.NSID}
-	ns.name = observe.Namespace{SubNQN: s.nqn, NSID: cfg.NSID}
-	fail := func(err error) (*namespace, error) { return nil, ns.fail(err) }
-	if cfg.NSID < 1 || cfg.NSID > MaxNSID {
-		return fail(fmt.Errorf("nsid must be 1 to %d", MaxNSID))
-	}
-	if cfg.ANAGroup > ana.MaxGroups {
-		return fail(fmt.Errorf("ANA group %d: 1 to %d are allowed", cfg.ANAGroup, ana.MaxGroups))
+func (s *subsystem) newNamespace(cfg namespaces.Config) (*namespace, error) {
+	ns := &namespace{sub: s}
+	if err := ns.Init(s.nqn, cfg, &s.t.common, ns.tell); err != nil {
+		return nil, err
 	}
-	if cfg.Device == nil {
-		return fail(errors.New("no device"))
-	}
-	geo, err := newGeometry(cfg.Device.Info(), cfg.ReadOnly)
-	if err != nil {
-		return fail(err)
-	}
-	a := s.newAttributes(cfg, cfg.Device)
-	a.limiter = qos.NewLimiter(a.limits, nil)
-	ns.cfg.Store(a)
-	ns.geo.Store(geo)
-	ns.state.protection = s.t.protectionOf(s.nqn, cfg.NSID)
 	ns.slot = s.t.takeSlot(ns)
-	ns.promises = s.t.promisesOf(namespaceName{s.nqn, cfg.NSID})
-	ns.Storage, ns.Reservations = ns, ns.reservations
-	ns.reservations.Attach(ns)
-	ns.marks.Attach(cfg.Device)
-	ns.marks.Cut(geo.size())
-	ns.startNotify()
+	p := s.t.promisesOf(ns.ID)
+	ns.Storage, ns.Reservations, ns.Marks = ns, p.reservations, p.marks
+	ns.Reservations.Attach(ns)
+	ns.Start(s.t.protectionOf(ns.ID))
 	return ns, nil
 }
 
-// fail says which namespace an error is about.
-func (ns *namespace) fail(err error) error {
-	return fmt.Errorf("subsystem %q: namespace %d: %w", ns.sub.nqn, ns.nsid, err)
-}
-
-// startNotify begins the notifications of the device.
-func (ns *namespace) startNotify() {
-	log := ns.sub.t.log
-	if d, ok := ns.cfg.Load().dev.(backend.Changer); ok {
-		d.Notify(func() { ns.changed(log) })
+// tell passes a notice on, see namespaces.Namespace.Init. Any goroutine.
+func (ns *namespace) tell(n namespaces.Notice, concerns func(hostNQN string) bool) {
+	switch {
+	case n == namespaces.Relimits:
+		for _, c := range ns.Channels() {
+			h := c.User.(*channel).h
+			h.post(h.relink)
+		}
+	case n == namespaces.Changed && ns.sub.namespaces.Load().get(ns.ID.NSID) != ns:
+		// not before it is added, and not after it was removed
+	case concerns == nil:
+		ns.sub.tell(notice{ns, n})
+	default:
+		ns.notify(n, concerns)
 	}
-	ns.changed(log) // it may have changed, or have been offline, before
 }
 
-// stopNotify ends the notifications of devices. It waits for one that is in progress, which does
-// not take Target.mu.
-func stopNotify(list []*namespace) {
-	for _, ns := range list {
-		if d, ok := ns.cfg.Load().dev.(backend.Changer); ok {
-			d.Notify(nil)
+// notify tells the controllers of hosts that a notice concerns. It looks at all controllers, so
+// reactors call subsystem.tell.
+func (ns *namespace) notify(n namespaces.Notice, concerns func(hostNQN string) bool) {
+	ns.sub.each(func(c *controller) {
+		if concerns(c.hostNQN) {
+			c.h.post(func() { c.notice(n, ns.ID.NSID) })
 		}
-	}
+	})
 }
 
 // namespaceTable is an immutable set of namespaces.
@@ -208,13 +63,13 @@ type namespaceTable struct {
 }
 
 func newNamespaceTable(list []*namespace) *namespaceTable {
-	slices.SortFunc(list, func(a, b *namespace) int { return int(a.nsid) - int(b.nsid) })
+	slices.SortFunc(list, func(a, b *namespace) int { return int(a.ID.NSID) - int(b.ID.NSID) })
 	t := &namespaceTable{list: list}
 	if n := len(list); n > 0 {
-		t.byID = make([]*namespace, list[n-1].nsid+1)
+		t.byID = make([]*namespace, list[n-1].ID.NSID+1)
 	}
 	for _, ns := range list {
-		t.byID[ns.nsid] = ns
+		t.byID[ns.ID.NSID] = ns
 	}
 	return t
 }
diff --git a/nvme/target/pause.go b/nvme/target/pause.go
index effd1b56..ed8eb1b8 100644
--- a/nvme/target/pause.go
+++ b/nvme/target/pause.go
@@ -4,8 +4,6 @@ import (
 	"errors"
 	"sync"
 	"time"
-
-	"github.com/nvmf-target/nvmf-target/nvme/target/dispatch"
 )
 
 // PauseNamespace makes commands for a namespace wait, each as long as its timeout allows, until
@@ -14,18 +12,12 @@ import (
 // zero-copy reads and writes, PauseNamespace fails and the namespace is as before. A namespace that
 // is paused already stays so; UpdateNamespace does not end it, a removal does.
 func (t *Target) PauseNamespace(nqn string, nsid uint32) error {
-	return t.changeNamespace(nqn, nsid, func(ns *namespace) error {
-		if err := ns.quiesce(); err != nil {
-			return err
-		}
-		ns.paused.Store(true)
-		return nil
-	})
+	return t.changeNamespace(nqn, nsid, (*namespace).Pause)
 }
 
 // ResumeNamespace ends the pause of a namespace, if it is paused.
 func (t *Target) ResumeNamespace(nqn string, nsid uint32) error {
-	return t.changeNamespace(nqn, nsid, (*namespace).resume)
+	return t.changeNamespace(nqn, nsid, (*namespace).Resume)
 }
 
 // PauseAll pauses all namespaces, as PauseNamespace does, and waits for their devices no longer
@@ -39,13 +31,18 @@ func (t *Target) PauseAll(within time.Duration) (release func(), err error) {
 	end := time.Now().Add(within)
 	paused := make([]bool, len(list))
 	errs := make([]error, len(list))
-	inParallel(len(list), func(i int) { paused[i], errs[i] = list[i].pauseUntil(end) })
+	var wg sync.WaitGroup
+	for i, ns := range list {
+		wg.Go(func() { paused[i], errs[i] = ns.PauseUntil(end) })
+	}
+	wg.Wait()
 	release = func() {
-		inParallel(len(list), func(i int) {
+		for i, ns := range list {
 			if paused[i] {
-				_ = list[i].change((*namespace).resume) // or it was removed
+				wg.Go(func() { _ = ns.Resume() }) // or it was removed
 			}
-		})
+		}
+		wg.Wait()
 	}
 	if err := errors.Join(errs...); err != nil {
 		release()
@@ -54,77 +51,11 @@ func (t *Target) PauseAll(within time.Duration) (release func(), err error) {
 	return release, nil
 }
 
-// inParallel calls fn with 0 to n-1 on a few goroutines and waits for them.
-func inParallel(n int, fn func(i int)) {
-	var wg sync.WaitGroup
-	next := make(chan int)
-	for range min(n, 32) {
-		wg.Go(func() {
-			for i := range next {
-				fn(i)
-			}
-		})
-	}
-	for i := range n {
-		next <- i
-	}
-	close(next)
-	wg.Wait()
-}
-
-// pauseUntil pauses a namespace unless it is paused already, or was removed. It waits for the
-// device until end.
-func (ns *namespace) pauseUntil(end time.Time) (paused bool, err error) {
-	if !ns.updating.TryLock() {
-		return false, ns.fail(errors.New("it is being changed"))
-	}
-	defer ns.updating.Unlock()
-	if ns.Retired() || ns.paused.Load() {
-		return false, nil
-	}
-	left := max(time.Until(end), 0)
-	if err := ns.quiesceWithin(left, left); err != nil {
-		ns.proceed()
-		return false, ns.fail(err)
-	}
-	ns.paused.Store(true)
-	return true, nil
-}
-
-// resume ends a pause.
-func (ns *namespace) resume() error {
-	ns.paused.Store(false)
-	return nil
-}
-
-// changeNamespace calls fn for a namespace, one at a time. Commands that wait since go on
-// afterwards, unless the namespace is paused.
+// changeNamespace calls fn for a namespace.
 func (t *Target) changeNamespace(nqn string, nsid uint32, fn func(*namespace) error) error {
 	ns, err := t.namespace(nqn, nsid)
 	if err != nil {
 		return err
 	}
-	return ns.change(fn)
-}
-
-// change is changeNamespace for a namespace that is known.
-func (ns *namespace) change(fn func(*namespace) error) error {
-	ns.updating.Lock()
-	defer ns.updating.Unlock()
-	if ns.Retired() {
-		return ns.fail(errors.New("it was removed"))
-	}
-	err := fn(ns)
-	ns.proceed()
-	if err != nil {
-		return ns.fail(err)
-	}
-	return nil
-}
-
-// proceed undoes quiesce, unless the namespace is paused.
-func (ns *namespace) proceed() {
-	if !ns.paused.Load() {
-		ns.setQuiesce(dispatch.QuiesceNothing, ns.sub.t.drainDeadline)
-	}
+	return fn(ns)
 }
diff --git a/nvme/target/promises.go b/nvme/target/promises.go
index 08a9d913..d81ced80 100644
--- a/nvme/target/promises.go
+++ b/nvme/target/promises.go
@@ -4,15 +4,10 @@ import (
 	"net/netip"
 
 	"github.com/nvmf-target/nvmf-target/backend/marks"
+	"github.com/nvmf-target/nvmf-target/nvme/target/observe"
 	"github.com/nvmf-target/nvmf-target/nvme/target/reservation"
 )
 
-// namespaceName names a namespace, also while it is removed.
-type namespaceName struct {
-	nqn  string
-	nsid uint32
-}
-
 // promises are the state of a namespace that hosts rely on. They outlive it until ForgetNamespace.
 type promises struct {
 	reservations *reservation.Namespace
@@ -20,12 +15,12 @@ type promises struct {
 }
 
 // promisesOf returns the promises of a namespace. The caller holds t.mu.
-func (t *Target) promisesOf(n namespaceName) *promises {
+func (t *Target) promisesOf(n observe.Namespace) *promises {
 	p := t.promises[n]
 	if p == nil {
 		p = &promises{
-			reservation.New(t.options.Reservations, n.nqn, n.nsid),
-			marks.New(t.options.Uncorrectable, n.nqn, n.nsid),
+			reservation.New(t.options.Reservations, n.SubNQN, n.NSID),
+			marks.New(t.options.Uncorrectable, n.SubNQN, n.NSID),
 		}
 		t.promises[n] = p
 	}
@@ -35,7 +30,7 @@ func (t *Target) promisesOf(n namespaceName) *promises {
 // ForgetNamespace forgets the reservations of a namespace that was removed and does not come back,
 // and its marks of uncorrectable blocks, also in the stores.
 func (t *Target) ForgetNamespace(nqn string, nsid uint32) {
-	n := namespaceName{nqn, nsid}
+	n := observe.Namespace{SubNQN: nqn, NSID: nsid}
 	t.mu.Lock()
 	p := t.promisesOf(n)
 	delete(t.promises, n)
diff --git a/nvme/target/property.go b/nvme/target/property.go
index 7d3d17df..64df75b0 100644
--- a/nvme/target/property.go
+++ b/nvme/target/property.go
@@ -23,9 +23,18 @@ func propertyGet(h *Handler, cm *cmd) {
 	h.finish(cm, c.Get(cm.req.SQE.Property().Offset(), c.entries()), nvme.Success)
 }
 
-// propertySet carries out a Property Set of CC (Base section 6.6).
+// propertySet carries out a Property Set of CC (Base section 6.6). A write that enables the
+// controller needs the properties of all namespaces, and is carried out once these are known. If
+// the machine is too busy to find them in time, the command fails and CC stays as it was.
 func propertySet(h *Handler, cm *cmd) {
-	h.reply(cm, 0, cm.s.ctrl.configure(nvme.CC(cm.req.SQE.Property().Value())), 0)
+	c, v := cm.s.ctrl, nvme.CC(cm.req.SQE.Property().Value())
+	reply := admin.Elsewhere(c.commonInfo, func(all backend.Info) admin.Reply {
+		return c.configure(v, all)
+	})
+	if !v.EN() || c.CC.EN() {
+		reply = c.configure(v, backend.Info{})
+	}
+	h.reply(cm, 0, reply, 0)
 }
 
 // disabledLimit is how long an association may last while its controller is not enabled, in
@@ -95,8 +104,9 @@ func (c *controller) ioQueuesEnded() {
 	}
 }
 
-// configure carries out a write of CC.
-func (c *controller) configure(v nvme.CC) admin.Reply {
+// configure carries out a write of CC. all is from commonInfo if the write may enable the
+// controller.
+func (c *controller) configure(v nvme.CC, all backend.Info) admin.Reply {
 	change, st := c.Write(v)
 	if change&admin.Reset != 0 {
 		c.reset()
@@ -105,7 +115,7 @@ func (c *controller) configure(v nvme.CC) admin.Reply {
 		c.dropQueues("the host shut the controller down")
 	}
 	if change&admin.Enabled != 0 {
-		return admin.Elsewhere(c.commonInfo, c.enable)
+		c.enable(all)
 	}
 	return admin.Reply{Status: st}
 }
@@ -116,7 +126,7 @@ func (c *controller) commonInfo() (all backend.Info) {
 	list := c.namespaces()
 	all.Discard = len(list) == 0
 	for _, ns := range list {
-		info := &ns.geo.Load().info
+		info := &ns.Geometry().Info
 		all.VolatileCache = all.VolatileCache || info.VolatileCache
 		all.Rotational = all.Rotational || info.Rotational
 		all.Discard = all.Discard || info.Discard
@@ -124,12 +134,11 @@ func (c *controller) commonInfo() (all backend.Info) {
 	return all
 }
 
-// enable makes the controller ready, unless it was reset or shut down meanwhile. Identify
-// Controller reports the properties of the namespaces: they do not change while the controller is
-// enabled.
-func (c *controller) enable(all backend.Info) (done admin.Reply) {
-	if !c.MakeReady() {
-		return done
+// enable makes the controller ready, unless it shuts down. Identify Controller reports the
+// properties of the namespaces: they do not change while the controller is enabled.
+func (c *controller) enable(all backend.Info) {
+	if c.CSTS.SHST() != 0 {
+		return
 	}
 	c.cached, c.rotational = all.VolatileCache, all.Rotational
 	c.writeThrough.Store(!c.cached)
@@ -140,7 +149,6 @@ func (c *controller) enable(all backend.Info) (done admin.Reply) {
 		c.ready.Store(true)
 	}
 	c.mu.Unlock()
-	return done
 }
 
 // reset is a Controller Reset: CC.EN from 1 to 0 (Base section 3.7.2). The admin queue and the keep
diff --git a/nvme/target/protect.go b/nvme/target/protect.go
index d814fb01..d0a5eb62 100644
--- a/nvme/target/protect.go
+++ b/nvme/target/protect.go
@@ -5,6 +5,8 @@ import (
 
 	"github.com/nvmf-target/nvmf-target/internal/ratelog"
 	"github.com/nvmf-target/nvmf-target/nvme"
+	"github.com/nvmf-target/nvmf-target/nvme/target/namespaces"
+	"github.com/nvmf-target/nvmf-target/nvme/target/observe"
 )
 
 // ProtectionStore keeps through a restart which namespaces hosts have write protected.
@@ -20,12 +22,12 @@ type ProtectionStore interface {
 // restart; nothing that a file of ours says is permanent, so that state is not offered.
 
 // protectionOf is the state that a namespace begins with. The caller holds t.mu.
-func (t *Target) protectionOf(nqn string, nsid uint32) nvme.WriteProtection {
+func (t *Target) protectionOf(n observe.Namespace) nvme.WriteProtection {
 	switch {
 	case t.options.Protection == nil:
-	case t.untilRestart[namespaceName{nqn, nsid}]:
+	case t.untilRestart[n]:
 		return nvme.WriteProtectUntilPowerCycle
-	case t.options.Protection.Protected(nqn, nsid):
+	case t.options.Protection.Protected(n.SubNQN, n.NSID):
 		return nvme.WriteProtect
 	}
 	return nvme.NoWriteProtect
@@ -35,14 +37,7 @@ func (t *Target) protectionOf(nqn string, nsid uint32) nvme.WriteProtection {
 func withProtection(c *controller) bool { return onIO(c) && c.t.options.Protection != nil }
 
 // writeProtection is the state that Get Features returns.
-func writeProtection(ns *namespace) uint32 {
-	ns.state.mu.Lock()
-	defer ns.state.mu.Unlock()
-	if ns.state.protection == nvme.NoWriteProtect && ns.cfg.Load().readOnly {
-		return uint32(nvme.WriteProtect)
-	}
-	return uint32(ns.state.protection)
-}
+func writeProtection(ns *namespace) uint32 { return uint32(ns.Protection()) }
 
 // setWriteProtection changes the state of one namespace. Before the command completes, the device
 // has finished every write that it had, and has none in a volatile cache.
@@ -71,54 +66,37 @@ func setWriteProtection(h *Handler, cm *cmd, list []*namespace, v uint32) {
 				return
 			}
 			log.Info("a host has write protected a namespace", "subsystem", c.sub.nqn,
-				"nsid", ns.nsid, "host", c.hostNQN)
+				"nsid", ns.ID.NSID, "host", c.hostNQN)
 			flushThose(h, cm, []*namespace{ns})
 		})
 	}()
 }
 
-var errNotChangeable = errors.New("the write protection cannot be changed")
-
-// protect changes the state while no reactor has a channel to the device, unless the host of c may
-// no longer use the namespace. It may block for the deadlines of quiesce.
+// protect changes the state, unless the host of c may no longer use the namespace. It may block for
+// the deadlines of changes.
 func (ns *namespace) protect(c *controller, to nvme.WriteProtection, log ratelog.Peer) nvme.Status {
 	t := ns.sub.t
-	err := t.changeNamespace(ns.sub.nqn, ns.nsid, func(*namespace) error { // maybe a later one
-		ns.state.mu.Lock()
-		now := ns.state.protection
-		ns.state.mu.Unlock()
-		if ns.cfg.Load().readOnly || now == nvme.WriteProtectUntilPowerCycle && to != now {
-			return errNotChangeable
-		}
-		if now == nvme.NoWriteProtect && to != now {
-			if err := ns.quiesce(); err != nil {
-				return err
-			}
-		}
+	err := ns.Protect(to, func() error {
 		if !c.mayChange(ns) {
 			return errHidden
 		}
-		err := t.options.Protection.SetProtected(ns.sub.nqn, ns.nsid, to == nvme.WriteProtect)
-		if err != nil {
-			return err
-		}
-		if to == nvme.WriteProtectUntilPowerCycle {
+		err := t.options.Protection.SetProtected(ns.ID.SubNQN, ns.ID.NSID, to == nvme.WriteProtect)
+		if err == nil && to == nvme.WriteProtectUntilPowerCycle {
 			t.mu.Lock()
-			t.untilRestart[namespaceName{ns.sub.nqn, ns.nsid}] = true
+			t.untilRestart[ns.ID] = true
 			t.mu.Unlock()
 		}
-		ns.update(func(s *namespaceState) { s.protection = to })
-		return nil
+		return err
 	})
 	switch {
 	case err == nil:
 		return nvme.Success
-	case errors.Is(err, errNotChangeable):
+	case errors.Is(err, namespaces.ErrNotChangeable):
 		return nvme.FeatureNotChangeable | nvme.DNR
 	case !c.mayChange(ns): // it was removed as well, for instance
 		return inactiveNamespace
 	}
 	log.Warn("a host cannot change the write protection of a namespace", "subsystem",
-		ns.sub.nqn, "nsid", ns.nsid, "err", err)
+		ns.ID.SubNQN, "nsid", ns.ID.NSID, "err", err)
 	return nvme.InternalError
 }
diff --git a/nvme/target/remove.go b/nvme/target/remove.go
index b9c4a4d8..cc43c818 100644
--- a/nvme/target/remove.go
+++ b/nvme/target/remove.go
@@ -6,6 +6,8 @@ import (
 	"strings"
 	"sync"
 	"time"
+
+	"github.com/nvmf-target/nvmf-target/nvme/target/namespaces"
 )
 
 const (
@@ -17,7 +19,6 @@ const (
 )
 
 var (
-	errBusy   = errors.New("the device does not finish its I/O")
 	errClosed = errors.New("the target is closed")
 
 	errPortRemoved = errors.New("the listener was removed, or is drained")
@@ -56,7 +57,7 @@ func (t *Target) RemoveNamespace(nqn string, nsid uint32) (gone <-chan struct{},
 		return nil, err
 	}
 	list := ns.sub.dropNamespaces(func(o *namespace) bool { return o == ns })
-	ns.notify(ns.cfg.Load().visible)
+	ns.notify(namespaces.Changed, ns.Attributes().Visible)
 	return t.retire(list), nil
 }
 
@@ -86,12 +87,7 @@ func (t *Target) retire(list []*namespace) (gone <-chan struct{}) {
 	go func() {
 		defer t.retiring.Done()
 		for _, ns := range list {
-			ns.updating.Lock() // an exchange of the device ends first, and no other begins
-			stopNotify([]*namespace{ns})
-			if ns.paused.CompareAndSwap(true, false) {
-				ns.proceed()
-			}
-			ns.updating.Unlock()
+			ns.Stop()
 		}
 		channels.Wait()
 		t.retired(list)
@@ -132,15 +128,16 @@ func (t *Target) Close() error {
 	select {
 	case <-done:
 		return nil
-	case <-time.After(t.closeDeadline):
+	case <-time.After(t.common.CloseDeadline):
 	}
 	t.mu.Lock()
 	defer t.mu.Unlock()
 	var busy []string
 	for _, ns := range t.slots {
 		if ns != nil {
-			busy = append(busy, fmt.Sprintf("namespace %d of %q", ns.nsid, ns.sub.nqn))
+			busy = append(busy, fmt.Sprintf("namespace %d of %q", ns.ID.NSID, ns.ID.SubNQN))
 		}
 	}
-	return fmt.Errorf("%s: after %v %w", strings.Join(busy, ", "), t.closeDeadline, errBusy)
+	return fmt.Errorf("%s: after %v %w", strings.Join(busy, ", "), t.common.CloseDeadline,
+		namespaces.ErrBusy)
 }
diff --git a/nvme/target/reservation_cmd.go b/nvme/target/reservation_cmd.go
index f68f6c2d..138ed595 100644
--- a/nvme/target/reservation_cmd.go
+++ b/nvme/target/reservation_cmd.go
@@ -42,7 +42,7 @@ func executeReservation(h *Handler, c *cmd) {
 		o, st := r.Apply(q)
 		if q.Full != nil {
 			ctrl.peerLog().Warn("reservation register refused", "subsystem", ctrl.sub.nqn, "nsid",
-				ns.nsid, "host", ctrl.hostNQN, "err", q.Full, "hint",
+				ns.ID.NSID, "host", ctrl.hostNQN, "err", q.Full, "hint",
 				"add the host to hosts in the configuration, or preempt registrants that are gone")
 		}
 		return o, st
@@ -71,7 +71,7 @@ func executeReport(h *Handler, c *cmd) {
 		h.finish(c, 0, inactiveNamespace)
 		return
 	}
-	h.reply(c, 0, admin.Reply{Data: ns.reservations.State().Report()}, 0)
+	h.reply(c, 0, admin.Reply{Data: ns.Reservations.State().Report()}, 0)
 }
 
 func (c *controller) reservationCap() nvme.ReservationCap {
@@ -80,12 +80,12 @@ func (c *controller) reservationCap() nvme.ReservationCap {
 
 // reservationMask and reservationPTPL are features 82h and 83h (Base sections 5.1.25.1.29 and
 // 5.1.25.1.30), which each namespace has of its own.
-func reservationMask(ns *namespace) uint32 { return ns.reservations.Mask.Load() }
+func reservationMask(ns *namespace) uint32 { return ns.Reservations.Mask.Load() }
 
-func setReservationMask(ns *namespace, v uint32) { ns.reservations.Mask.Store(v) }
+func setReservationMask(ns *namespace, v uint32) { ns.Reservations.Mask.Store(v) }
 
 func reservationPTPL(ns *namespace) uint32 {
-	if ns.reservations.State().PTPL {
+	if ns.Reservations.State().PTPL {
 		return 1
 	}
 	return 0
@@ -124,8 +124,8 @@ func reservationPage(c *controller, _ *nvme.SQE) admin.Reply {
 // Notify implements reservation.User.
 func (ns *namespace) Notify(to map[reservation.Host]nvme.ReservationNotification) {
 	ns.sub.each(func(c *controller) {
-		if typ := to[c.identity.Value()]; typ != 0 && c.namespace(ns.nsid) != nil {
-			c.h.post(func() { c.notifyReservation(typ, ns.nsid) })
+		if typ := to[c.identity.Value()]; typ != 0 && c.namespace(ns.ID.NSID) != nil {
+			c.h.post(func() { c.notifyReservation(typ, ns.ID.NSID) })
 		}
 	})
 }
diff --git a/nvme/target/selftest.go b/nvme/target/selftest.go
index 630c0604..3f6a1bad 100644
--- a/nvme/target/selftest.go
+++ b/nvme/target/selftest.go
@@ -11,6 +11,7 @@ import (
 	"github.com/nvmf-target/nvmf-target/nvme"
 	"github.com/nvmf-target/nvmf-target/nvme/target/admin"
 	"github.com/nvmf-target/nvmf-target/nvme/target/compound"
+	"github.com/nvmf-target/nvmf-target/nvme/target/namespaces"
 )
 
 // A device self-test reads namespaces in the background, as Verify commands of the host would that
@@ -113,8 +114,8 @@ func planSelfTest(code nvme.SelfTestCode, list []*namespace) selfTestPlan {
 		p.sample = uint64(max(selfTestSample/max(len(list), 1), 1))
 	}
 	for _, ns := range list {
-		p.nsids = append(p.nsids, ns.nsid)
-		p.total += min(ns.geo.Load().chunks(), p.sample)
+		p.nsids = append(p.nsids, ns.ID.NSID)
+		p.total += min(chunks(ns.Geometry()), p.sample)
 	}
 	return p
 }
@@ -134,8 +135,8 @@ func (t *selfTest) start(c *controller, code nvme.SelfTestCode, p selfTestPlan,
 }
 
 // chunks is the number of chunks of a namespace.
-func (g *geometry) chunks() uint64 {
-	return (g.blocks<<g.shift + uint64(compound.Chunk) - 1) / uint64(compound.Chunk)
+func chunks(g *namespaces.Geometry) uint64 {
+	return (g.Blocks<<g.Shift + uint64(compound.Chunk) - 1) / uint64(compound.Chunk)
 }
 
 // pause lets the test go on later, unless a read of an earlier one does that when it returns.
@@ -166,8 +167,8 @@ func (t *selfTest) advance() {
 		default:
 			continue
 		}
-		g := ns.geo.Load()
-		all := g.chunks()
+		g := ns.Geometry()
+		all := chunks(g)
 		n := min(all, t.sample)
 		if t.chunk < n {
 			at := t.chunk
@@ -182,13 +183,13 @@ func (t *selfTest) advance() {
 }
 
 // read reads a chunk of the namespace.
-func (t *selfTest) read(g *geometry, chunk uint64) {
+func (t *selfTest) read(g *namespaces.Geometry, chunk uint64) {
 	c, h := t.cmd, t.c.h
-	blocks := uint64(compound.Chunk) >> g.shift
+	blocks := uint64(compound.Chunk) >> g.Shift
 	slba := chunk * blocks
 	t.req.Reset()
 	t.req.SQE.SetNSID(t.nsids[t.index])
-	t.req.SQE.RW().Set(slba, uint32(min(blocks, g.blocks-slba)), 0)
+	t.req.SQE.RW().Set(slba, uint32(min(blocks, g.Blocks-slba)), 0)
 	c.req, c.op, c.ch, c.limited, c.executing = &t.req, &ioOps[nvme.NVMVerify], nil, false, true
 	c.s.outstanding++
 	t.reading, t.since = t.begun, h.loop.Now()
@@ -229,7 +230,7 @@ func (t *selfTest) failed(st nvme.Status) {
 	}
 	var at *backend.Fault
 	if ns := t.c.namespace(r.NSID); ns != nil && errors.As(t.cmd.io.Err, &at) {
-		r.FLBA, r.VDINFO = uint64(at.Off)>>ns.geo.Load().shift, r.VDINFO|nvme.SelfTestValidFLBA
+		r.FLBA, r.VDINFO = uint64(at.Off)>>ns.Geometry().Shift, r.VDINFO|nvme.SelfTestValidFLBA
 	}
 	t.c.peerLog().Trouble("a self-test has failed", "subsystem", t.c.sub.nqn, "nsid", r.NSID,
 		"host", t.c.hostNQN, "status", st.String())
@@ -242,7 +243,7 @@ func (t *selfTest) end(r nvme.SelfTestResult, how nvme.SelfTestOutcome) {
 		return
 	}
 	r.DSTS = uint8(t.code)<<4 | uint8(how)
-	r.POH = uint64(time.Since(t.c.t.started) / time.Hour)
+	r.POH = uint64(time.Since(t.c.t.common.Started) / time.Hour)
 	t.results = slices.Insert(t.results, 0, r)
 	t.results = t.results[:min(len(t.results), nvme.SelfTestResults)]
 	t.close()
@@ -279,7 +280,7 @@ func selfTestPage(c *controller, _ *nvme.SQE) admin.Reply {
 func (c *controller) selfTestMinutes() uint16 {
 	var size uint64
 	for _, ns := range c.namespaces() {
-		size += ns.geo.Load().chunks() * uint64(compound.Chunk)
+		size += chunks(ns.Geometry()) * uint64(compound.Chunk)
 	}
 	return uint16(min(size/selfTestRate/60+1, math.MaxUint16))
 }
diff --git a/nvme/target/session.go b/nvme/target/session.go
index a8dda356..b3af8c4a 100644
--- a/nvme/target/session.go
+++ b/nvme/target/session.go
@@ -82,8 +82,8 @@ type commandStates struct {
 
 // queueEnd is the end of a queue.
 type queueEnd struct {
-	ends  walk // see Handler.end
-	endAt int  // the next command that is to end
+	ends  dispatch.Walk // see Handler.end
+	endAt int           // the next command that is to end
 
 	closed   bool  // by the transport
 	stopped  bool  // see stop
@@ -230,7 +230,7 @@ func (s *session) finishDisconnect() {
 // endIfIdle ends a closed session when its last command is back: only now may its memory be freed
 // and its queue ID be used again.
 func (s *session) endIfIdle() {
-	if !s.closed || s.outstanding > 0 || s.completed.Listed() || s.ends.node.Listed() || s.ended {
+	if !s.closed || s.outstanding > 0 || s.completed.Listed() || s.ends.Listed() || s.ended {
 		return
 	}
 	s.ended = true
diff --git a/nvme/target/status.go b/nvme/target/status.go
index 7fa90fdf..651aea5a 100644
--- a/nvme/target/status.go
+++ b/nvme/target/status.go
@@ -1,13 +1,10 @@
 package target
 
 import (
-	"errors"
-
 	"github.com/nvmf-target/nvmf-target/backend"
-	"github.com/nvmf-target/nvmf-target/backend/marks"
 	"github.com/nvmf-target/nvmf-target/nvme"
 	"github.com/nvmf-target/nvmf-target/nvme/target/compound"
-	"github.com/nvmf-target/nvmf-target/nvme/target/dispatch"
+	"github.com/nvmf-target/nvmf-target/nvme/target/namespaces"
 )
 
 // Refusals that a retry of the same command would meet again.
@@ -28,7 +25,7 @@ const inactiveNamespace = invalidField
 // noNamespace is the status of a command that needs a namespace and has this NSID, which names none
 // (Base section 3.2.1.5).
 func noNamespace(nsid uint32) nvme.Status {
-	if nsid == 0 || nsid > MaxNSID {
+	if nsid == 0 || nsid > namespaces.MaxNSID {
 		return invalidNamespace
 	}
 	return inactiveNamespace
@@ -36,67 +33,10 @@ func noNamespace(nsid uint32) nvme.Status {
 
 const notReady = compound.NotReady
 
-// ioErrors is the only place where errors of devices become statuses, and reasons, by which they
-// are counted. The first error that matches decides. A status that a retry or another path may
-// cure has no DNR.
-var ioErrors = [dispatch.ErrorKinds]struct {
-	err    error
-	reason string
-	status nvme.Status
-}{
-	{backend.ErrOffline, "offline", notReady},
-	{backend.ErrAborted, "aborted", nvme.AbortRequested},
-	{backend.ErrIO, "io", nvme.WriteFault}, // Base section 4.2.3.3, 80h
-	{backend.ErrNoSpace, "no_space", nvme.CapacityExceeded | nvme.DNR},
-	{backend.ErrReadOnly, "read_only", writeProtected},
-	{backend.ErrOutOfRange, "out_of_range", outOfRange},
-	{backend.ErrUnsupported, "unsupported", invalidOpcode},
-	{nil, "other", nvme.InternalError},
-}
-
-// errorIO is the index of media errors in ioErrors.
-const errorIO = 2
-
-// ioStatus returns the status of a failed IO and the index of its error in ioErrors.
-func ioStatus(io *backend.IO) (nvme.Status, int) {
-	i := 0
-	for i < len(ioErrors)-1 && !errors.Is(io.Err, ioErrors[i].err) {
-		i++
-	}
-	if i == errorIO && io.Op == backend.OpRead {
-		return nvme.UnrecoveredReadError, i // Base section 4.2.3.3, 81h
-	}
-	return ioErrors[i].status, i
-}
-
-// failureLogInterval is the time between log lines about failed IOs of one namespace and reason.
-const failureLogInterval = int64(60e9)
-
 // failed counts and logs a failed IO and returns its status.
 func (ch *channel) failed(io *backend.IO) nvme.Status {
-	switch io.Err { // not by the device
-	case errHidden:
+	if io.Err == errHidden { // not by the device
 		return inactiveNamespace
-	case dispatch.ErrPreempted:
-		return nvme.AbortedPreempt // no DNR: a retry is checked against the present reservation
-	}
-	if errors.Is(io.Err, marks.ErrMarked) { // no error of the medium: it is not counted
-		return nvme.UnrecoveredReadError | nvme.DNR
-	}
-	st, reason := ioStatus(io)
-	ch.CountError(reason)
-	if errors.Is(io.Err, backend.ErrDegraded) {
-		ch.ns.degrade(ch.h.t.log, io.Err)
-	}
-	switch st {
-	case notReady, nvme.AbortRequested: // hosts retry
-		return st
-	}
-	last, now := &ch.ns.failureLogged[reason], ch.h.loop.Now()
-	if t := last.Load(); (t == 0 || now-t >= failureLogInterval) && last.CompareAndSwap(t, now) {
-		ch.h.t.log.Warn("I/O failed; for a minute, more failures of this kind are only counted",
-			"subsystem", ch.ns.sub.nqn, "nsid", ch.ns.nsid, "device", ch.ns.identity(),
-			"command", io.Op.String(), "status", st.String(), "err", io.Err)
 	}
-	return st
+	return ch.ns.Failed(&ch.Channel, io, ch.h.loop.Now())
 }
diff --git a/nvme/target/subsystem.go b/nvme/target/subsystem.go
index 0ad8b6fc..1660a036 100644
--- a/nvme/target/subsystem.go
+++ b/nvme/target/subsystem.go
@@ -2,6 +2,8 @@ package target
 
 import (
 	"cmp"
+	"crypto/sha256"
+	"encoding/hex"
 	"fmt"
 	"slices"
 	"strings"
@@ -12,6 +14,7 @@ import (
 	"github.com/nvmf-target/nvmf-target/nvme/target/association"
 	"github.com/nvmf-target/nvmf-target/nvme/target/discovery"
 	"github.com/nvmf-target/nvmf-target/nvme/target/dispatch"
+	"github.com/nvmf-target/nvmf-target/nvme/target/namespaces"
 	"github.com/nvmf-target/nvmf-target/nvme/target/qos"
 )
 
@@ -44,7 +47,7 @@ type SubsystemConfig struct {
 	MaxTransfer int
 	// Limits are the limits of all hosts together.
 	Limits     qos.Limits
-	Namespaces []NamespaceConfig
+	Namespaces []namespaces.Config
 }
 
 // The bounds of SubsystemConfig, which the configuration's parser uses as well.
@@ -57,7 +60,7 @@ const (
 	// have no more.
 	MinQueueSize = discovery.MinQueueSize
 	// MinTransfer is the least that MDTS may allow (Base section 5.1.13.2.1). No block is larger.
-	MinTransfer = 64 << 10
+	MinTransfer = namespaces.MaxBlock
 	// MaxTransfer is the most that MDTS may allow.
 	MaxTransfer = 4 << 20
 )
@@ -118,6 +121,12 @@ func (c *SubsystemConfig) validate() error {
 	return nil
 }
 
+// derivedSerial is a stable serial number for a subsystem.
+func derivedSerial(nqn string) string {
+	sum := sha256.Sum256([]byte(nqn))
+	return hex.EncodeToString(sum[:10])
+}
+
 func isText(s string) bool {
 	return !strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r > '~' })
 }
@@ -166,7 +175,8 @@ type subsystem struct {
 	retiring []*namespace      // removed, but devices or reactors still work for them
 	retired  dispatch.Counters // of earlier ones that all hosts could use
 	// warned are the warnings of the drives at the last CheckHealth, which alone uses it.
-	warned uint8
+	warned  uint8
+	notices notices
 }
 
 func newSubsystem(t *Target, cfg SubsystemConfig) *subsystem {
@@ -263,16 +273,61 @@ func (s *subsystem) each(fn func(*controller)) {
 	})
 }
 
+// notice is a change of a namespace that the controllers of its hosts are told of.
+type notice struct {
+	ns *namespace
+	namespaces.Notice
+}
+
+// notices are those of a subsystem that its controllers have yet to be told. mu guards them.
+type notices struct {
+	mu      sync.Mutex
+	waiting map[notice]bool
+	telling bool // a goroutine does it
+}
+
 // fewControllers is how many controllers a reactor looks at in one step.
 const fewControllers = 64
 
-// eachSoon is each for reactors: if there are many controllers, another goroutine calls fn.
-func (s *subsystem) eachSoon(fn func(*controller)) {
-	if s.count.Load() > fewControllers {
-		go s.each(fn)
+// tell tells the controllers of a notice. If there are many, a goroutine does it, one at a time for
+// each subsystem: a notice that comes again meanwhile is one. Any goroutine, and reactors.
+func (s *subsystem) tell(n notice) {
+	if s.count.Load() <= fewControllers {
+		n.tell()
 		return
 	}
-	s.each(fn)
+	w := &s.notices
+	w.mu.Lock()
+	defer w.mu.Unlock()
+	if w.waiting == nil {
+		w.waiting = map[notice]bool{}
+	}
+	w.waiting[n] = true
+	if !w.telling {
+		w.telling = true
+		go w.tellAll()
+	}
+}
+
+// tellAll tells notices until there are no more.
+func (w *notices) tellAll() {
+	w.mu.Lock()
+	defer w.mu.Unlock()
+	for len(w.waiting) > 0 {
+		for n := range w.waiting {
+			delete(w.waiting, n)
+			w.mu.Unlock()
+			n.tell()
+			w.mu.Lock()
+		}
+	}
+	w.telling = false
+}
+
+func (n notice) tell() {
+	n.ns.notify(n.Notice, func(hostNQN string) bool {
+		return n.ns.Attributes().Visible(hostNQN)
+	})
 }
 
 // counted returns the namespaces that a host may use, and the counters of the removed namespaces
@@ -314,7 +369,7 @@ func (s *subsystem) retire(ns *namespace) {
 	s.mu.Lock()
 	defer s.mu.Unlock()
 	s.retiring = slices.DeleteFunc(s.retiring, func(o *namespace) bool { return o == ns })
-	if ns.cfg.Load().hosts == nil {
+	if len(ns.Attributes().Hosts) == 0 {
 		total := ns.Total()
 		s.retired.Add(&total)
 	}
diff --git a/nvme/target/target.go b/nvme/target/target.go
index 23ed7381..63ff0c97 100644
--- a/nvme/target/target.go
+++ b/nvme/target/target.go
@@ -20,6 +20,7 @@ import (
 	"github.com/nvmf-target/nvmf-target/nvme/target/association"
 	"github.com/nvmf-target/nvmf-target/nvme/target/authn"
 	"github.com/nvmf-target/nvmf-target/nvme/target/discovery"
+	"github.com/nvmf-target/nvmf-target/nvme/target/namespaces"
 	"github.com/nvmf-target/nvmf-target/nvme/target/observe"
 	"github.com/nvmf-target/nvmf-target/nvme/target/qos"
 	"github.com/nvmf-target/nvmf-target/nvme/target/reservation"
@@ -50,7 +51,6 @@ type Options struct {
 type Target struct {
 	log     *slog.Logger // no peer causes its lines at will
 	options Options
-	started time.Time
 	// hostLog is for lines that allowed hosts can cause, strangerLog for lines that anybody can.
 	hostLog, strangerLog *ratelog.Logger
 
@@ -80,7 +80,7 @@ type Target struct {
 	keysChanged     bool // a host has got or lost its key since EnforceKeys
 	kept
 
-	deadlines // tests wait less
+	common namespaces.Common // tests wait less
 }
 
 // hostTables are the settings of hosts in the configuration. Readers take no lock.
@@ -96,36 +96,32 @@ type hostTables struct {
 type observation struct {
 	dumps     observe.Dumps
 	latencies observe.Reader
-	capturing chan struct{} // of one entry, see controller.capture
-	slowIO    atomic.Int64  // nanoseconds, see SetSlowIO
+	slowIO    atomic.Int64 // nanoseconds, see SetSlowIO
 }
 
 // kept is also of namespaces that were removed. Target.mu guards it.
 type kept struct {
 	// untilRestart are write protected until the target restarts.
-	untilRestart map[namespaceName]bool
-	promises     map[namespaceName]*promises
-}
-
-// deadlines are how long changes wait for transports and for devices.
-type deadlines struct {
-	closeDeadline, drainDeadline time.Duration
+	untilRestart map[observe.Namespace]bool
+	promises     map[observe.Namespace]*promises
 }
 
 // New makes a Target without subsystems and ports; the discovery subsystem always exists.
 func New(o Options) *Target {
 	t := &Target{
-		log: o.Log, options: o, started: time.Now(),
+		log: o.Log, options: o,
 		observation: observation{
-			latencies: make(observe.Reader, 1), capturing: make(chan struct{}, 1),
+			latencies: make(observe.Reader, 1),
 		},
-		deadlines: deadlines{closeDeadline, drainDeadline},
-		workers:   turns.Pool{Prompt: true},
-		kept:      kept{map[namespaceName]bool{}, map[namespaceName]*promises{}},
+		workers: turns.Pool{Prompt: true},
+		kept:    kept{map[observe.Namespace]bool{}, map[observe.Namespace]*promises{}},
 	}
 	if t.log == nil {
 		t.log = slog.Default()
 	}
+	t.common = namespaces.Common{
+		Log: t.log, Started: time.Now(), CloseDeadline: closeDeadline, DrainDeadline: drainDeadline,
+	}
 	t.hostLog, t.strangerLog = ratelog.New(t.log), ratelog.New(t.log)
 	service := SubsystemConfig{NQN: nvme.DiscoveryNQN, AllowAnyHost: true}
 	service.SetDefaults()
@@ -193,12 +189,14 @@ func (t *Target) AddSubsystem(cfg SubsystemConfig) error {
 		if err == nil {
 			list = append(list, ns)
 			if slices.ContainsFunc(list[:len(list)-1],
-				func(o *namespace) bool { return o.nsid == ns.nsid }) {
+				func(o *namespace) bool { return o.ID.NSID == ns.ID.NSID }) {
 				err = fmt.Errorf("subsystem %q: namespace %d is given twice", cfg.NQN, nc.NSID)
 			}
 		}
 		if err != nil {
-			stopNotify(list)
+			for _, ns := range list {
+				ns.StopNotify()
+			}
 			t.freeSlots(list)
 			return err
 		}
@@ -211,7 +209,7 @@ func (t *Target) AddSubsystem(cfg SubsystemConfig) error {
 }
 
 // AddNamespace adds a namespace to a subsystem and notifies connected hosts.
-func (t *Target) AddNamespace(nqn string, cfg NamespaceConfig) error {
+func (t *Target) AddNamespace(nqn string, cfg namespaces.Config) error {
 	t.mu.Lock()
 	defer t.mu.Unlock()
 	s := (*t.table.Load())[nqn]
@@ -227,7 +225,7 @@ func (t *Target) AddNamespace(nqn string, cfg NamespaceConfig) error {
 		return err
 	}
 	s.namespaces.Store(newNamespaceTable(append(slices.Clone(old.list), ns)))
-	ns.notify(ns.cfg.Load().visible)
+	ns.notify(namespaces.Changed, ns.Attributes().Visible)
 	return nil
 }
 
@@ -245,7 +243,7 @@ func (t *Target) takeSlot(ns *namespace) int {
 
 func (t *Target) freeSlots(list []*namespace) {
 	for _, ns := range list {
-		ns.reservations.Detach(ns)
+		ns.Reservations.Detach(ns)
 		t.slots[ns.slot] = nil
 	}
 }
@@ -328,6 +326,20 @@ func (t *Target) Controllers() []observed.Host {
 	return list
 }
 
+// Stats lists the namespaces, in the order of subsystem and NSID. It does not block: CheckHealth,
+// and requests of hosts, refresh the state of drives and the space.
+func (t *Target) Stats() []observed.Namespace {
+	var list []observed.Namespace
+	for _, s := range *t.table.Load() {
+		for _, ns := range s.namespaces.Load().list {
+			list = append(list, ns.Stats())
+		}
+	}
+	slices.SortStableFunc(list,
+		func(a, b observed.Namespace) int { return cmp.Compare(a.Subsystem, b.Subsystem) })
+	return list
+}
+
 // Sessions is the number of queues that transports have opened and that have not ended, connected
 // or not.
 func (t *Target) Sessions() int {
diff --git a/nvme/target/telemetry.go b/nvme/target/telemetry.go
index 4637ddbc..7f0a6b5d 100644
--- a/nvme/target/telemetry.go
+++ b/nvme/target/telemetry.go
@@ -16,19 +16,28 @@ var (
 	errNoTurn   = errors.New("too many controllers are captured")
 )
 
-// capture captures the state of the controller, when no other is captured: each capture takes
-// processor time from the reactors. It waits for the reactors of its queues, so no reactor calls
-// it.
-func (c *controller) capture() (*[]byte, error) {
+// capture captures the state of the controller, in the turn of its host: each capture takes
+// processor time from the reactors. It waits for them, so no reactor calls it.
+func (c *controller) capture() (data *[]byte, err error) {
+	done := make(chan struct{})
+	w := c.admin.hostWork(func() { data, err = c.captured() })
+	w.Request(&admin.Waiter{Answered: func() { close(done) }})
 	select {
-	case c.t.capturing <- struct{}{}:
-		defer func() { <-c.t.capturing }()
+	case <-done:
 	case <-time.After(admin.AnswerWait):
-		return nil, errNoTurn
+		if c.t.workers.Cancel(&w.Job) {
+			return nil, errNoTurn
+		}
+		<-done
 	}
+	return data, err
+}
+
+// captured captures the state of the controller.
+func (c *controller) captured() (*[]byte, error) {
 	v := admin.Capture{
 		Version: c.t.options.Firmware, Time: time.Now(),
-		UptimeSeconds: time.Since(c.t.started).Seconds(),
+		UptimeSeconds: time.Since(c.t.common.Started).Seconds(),
 		Host:          c.hostNQN, ID: hex.EncodeToString(c.hostID[:]), Subsystem: c.sub.nqn,
 		CNTLID: c.cntlid, Ready: c.ready.Load(), Limits: c.capturedLimits(),
 	}
@@ -79,7 +88,7 @@ func (c *controller) capturedConnections() ([]observed.Connection, error) {
 }
 
 func (ns *namespace) captured() observed.Namespace {
-	s := ns.stats()
+	s := ns.Stats()
 	s.Subsystem = "" // the capture has it
 	maps.DeleteFunc(s.Errors, func(_ string, n uint64) bool { return n == 0 })
 	return s
diff --git a/nvme/target/timeout.go b/nvme/target/timeout.go
index b1947113..795bcec6 100644
--- a/nvme/target/timeout.go
+++ b/nvme/target/timeout.go
@@ -3,6 +3,7 @@ package target
 import (
 	"github.com/nvmf-target/nvmf-target/backend"
 	"github.com/nvmf-target/nvmf-target/nvme/target/compound"
+	"github.com/nvmf-target/nvmf-target/nvme/target/dispatch"
 )
 
 // The steps for a command at a device that does not answer:
@@ -19,9 +20,6 @@ import (
 const (
 	// timeoutInterval is how often commands that have timed out are looked for, in nanoseconds.
 	timeoutInterval = int64(500e6)
-	// rangeFactor multiplies the timeout of discards and zeroes, each of which may cover the whole
-	// disk.
-	rangeFactor = 10
 	// closeGrace is how long devices may take for the commands of a queue that has ended, in
 	// nanoseconds: a controller reset waits for them.
 	closeGrace = int64(5e9)
@@ -41,7 +39,7 @@ func (h *Handler) stopTimeoutsIfIdle() {
 	if h.compounds.Reading() || h.opened > 0 || h.stopTimeouts == nil {
 		return
 	}
-	if h.timeoutsLeft = false; !h.timeouts.node.Listed() {
+	if h.timeoutsLeft = false; !h.timeouts.Listed() {
 		h.stopTimeouts()
 		h.stopTimeouts = nil
 	}
@@ -52,12 +50,12 @@ func (h *Handler) stopTimeoutsIfIdle() {
 func (h *Handler) checkTimeouts() {
 	h.timeoutsLeft = false
 	idle := func(s *session) bool { return s.outstanding == 0 }
-	h.timeouts = walk{next: h.visitAll(idle, h.checkTimeout), done: func() {
+	h.timeouts = dispatch.Walk{Next: h.visitAll(idle, h.checkTimeout), Done: func() {
 		if h.stopTimeouts = nil; h.timeoutsLeft {
 			h.startTimeouts()
 		}
 	}}
-	h.start(&h.timeouts)
+	h.dispatch.Start(&h.timeouts)
 }
 
 // checkTimeout gives a command up if it has timed out, and reports whether it has. A write that is
@@ -89,24 +87,15 @@ func (h *Handler) checkTimeout(c *cmd) bool {
 func (c *cmd) timedOut(now int64) bool {
 	m := c.compound
 	if m == nil {
-		return c.ch.ns.timesOut(c.io.Op, now-c.since)
+		return c.ch.ns.TimesOut(c.io.Op, now-c.since)
 	}
 	for o := range m.IOs() {
-		if o.Channel.(*channel).ns.timesOut(o.Op, now-o.Since) {
+		if o.Channel.(*channel).ns.TimesOut(o.Op, now-o.Since) {
 			return true
 		}
 	}
 	// It times out also while it waits for something else, but not for its turn.
-	return m.Waits() && c.ch.ns.timesOut(backend.OpRead, now-m.Since)
-}
-
-// timesOut reports whether an operation may not take so long, in nanoseconds.
-func (ns *namespace) timesOut(op backend.Op, took int64) bool {
-	t := ns.cfg.Load().timeout
-	if op == backend.OpDiscard || op == backend.OpWriteZeroes {
-		t *= rangeFactor
-	}
-	return t > 0 && took >= t
+	return m.Waits() && c.ch.ns.TimesOut(backend.OpRead, now-m.Since)
 }
 
 // giveUp completes a command that is with a device, or waits for one, with notReady. If the memory
@@ -119,7 +108,7 @@ func (h *Handler) giveUp(c *cmd) {
 	}
 	ch := c.ch
 	if ch.Withdraw(&c.io) {
-		ch.ns.timedOut()
+		ch.ns.CountTimeout()
 		h.finish(c, 0, notReady)
 		return
 	}
@@ -135,7 +124,7 @@ func (h *Handler) giveUp(c *cmd) {
 	next.io.Owner, next.latency = next, c.latency
 	c.s.cmds[c.i], r.Command = next, next
 	c.req, c.executing = nil, false
-	ch.ns.timedOut()
+	ch.ns.CountTimeout()
 	ch.Orphaned(&c.io)
 	h.finish(next, 0, notReady)
 	ch.Cancel(&c.io)
@@ -148,9 +137,9 @@ func giveUp(m *compound.Compound) {
 	for o := range m.IOs() {
 		// Without a timeout, one that was not submitted waited for another namespace.
 		ch := o.Channel.(*channel)
-		if ns := ch.ns; ns != counted && (ch.Has(&o.IO) || ns.cfg.Load().timeout > 0) {
+		if ns := ch.ns; ns != counted && (ch.Has(&o.IO) || ns.Attributes().Timeout > 0) {
 			counted = ns
-			ns.timedOut()
+			ns.CountTimeout()
 		}
 	}
 	m.GiveUp()
diff --git a/nvme/target/uncorrectable.go b/nvme/target/uncorrectable.go
index 514f163b..ffb43566 100644
--- a/nvme/target/uncorrectable.go
+++ b/nvme/target/uncorrectable.go
@@ -29,6 +29,6 @@ func prepareWriteUncorrectable(c *cmd) nvme.Status {
 }
 
 func executeWriteUncorrectable(h *Handler, c *cmd) {
-	c.ch.ns.marks.Begin()
+	c.ch.ns.Marks.Begin()
 	executeIO(h, c)
 }
diff --git a/nvme/target/update.go b/nvme/target/update.go
index 6f675268..3c48f93d 100644
--- a/nvme/target/update.go
+++ b/nvme/target/update.go
@@ -2,12 +2,9 @@ package target
 
 import (
 	"fmt"
-	"time"
 
 	"github.com/nvmf-target/nvmf-target/backend"
-	"github.com/nvmf-target/nvmf-target/nvme/target/ana"
-	"github.com/nvmf-target/nvmf-target/nvme/target/dispatch"
-	"github.com/nvmf-target/nvmf-target/nvme/target/qos"
+	"github.com/nvmf-target/nvmf-target/nvme/target/namespaces"
 )
 
 // UpdateSubsystem changes everything of the subsystem cfg.NQN but its namespaces, which cfg does
@@ -72,149 +69,10 @@ func (s *subsystem) update(now *settings) {
 // writes, swap is not called and everything is as it was. Changes of one namespace take turns, so
 // swap makes none. Of a namespace that is removed meanwhile, the device is in use until the
 // removal's gone is closed.
-func (t *Target) UpdateNamespace(nqn string, cfg NamespaceConfig,
+func (t *Target) UpdateNamespace(nqn string, cfg namespaces.Config,
 	swap func(old backend.Device) (backend.Device, error),
 ) error {
 	return t.changeNamespace(nqn, cfg.NSID, func(ns *namespace) error {
-		if cfg.ANAGroup > ana.MaxGroups {
-			return ns.fail(fmt.Errorf("ANA group %d: 1 to %d are allowed", cfg.ANAGroup,
-				ana.MaxGroups))
-		}
-		if swap == nil {
-			next := ns.sub.newAttributes(cfg, ns.cfg.Load().dev)
-			next.space = ns.cfg.Load().space
-			ns.adopt(next, false)
-			return nil
-		}
-		stopNotify([]*namespace{ns}) // first: it may block
-		if err := ns.quiesce(); err != nil {
-			ns.startNotify()
-			return err
-		}
-		return ns.swap(cfg, swap)
+		return ns.Update(cfg, swap)
 	})
 }
-
-// quiesce makes commands wait until no reactor has a channel to the device.
-func (ns *namespace) quiesce() error {
-	return ns.quiesceWithin(ns.sub.t.closeDeadline, ns.sub.t.drainDeadline)
-}
-
-// quiesceWithin waits for so long at most, for zero-copy reads and writes and then for the device.
-func (ns *namespace) quiesceWithin(zeroCopy, io time.Duration) error {
-	if ns.paused.Load() {
-		return nil
-	}
-	if !ns.setQuiesce(dispatch.QuiesceZeroCopy, zeroCopy) {
-		return fmt.Errorf("hosts still read or write the memory of the device after %v", zeroCopy)
-	}
-	if !ns.setQuiesce(dispatch.QuiesceIO, io) {
-		return fmt.Errorf("after %v %w", io, errBusy)
-	}
-	return nil
-}
-
-// setQuiesce keeps commands from the device as far as l, and waits until every reactor has reached
-// that. It returns false if that takes longer than wait.
-func (ns *namespace) setQuiesce(l dispatch.Level, wait time.Duration) bool {
-	done := ns.Quiesce(l)
-	select {
-	case <-done:
-		return true
-	case <-time.After(wait):
-	}
-	select {
-	case <-done: // both, for instance if no reactor has a channel
-		return true
-	default:
-		return false
-	}
-}
-
-// swap exchanges the device while no reactor has a channel to it.
-func (ns *namespace) swap(cfg NamespaceConfig,
-	swap func(backend.Device) (backend.Device, error),
-) error {
-	before, info := ns.cfg.Load(), ns.geo.Load().info
-	between := *before
-	between.dev = &absent{info} // not the device, which may be closed any moment
-	ns.setAttributes(&between, false)
-	old := before.dev
-	if _, none := old.(*absent); none {
-		old = nil
-	}
-	dev, err := swap(old)
-	there := dev != nil
-	if !there {
-		info.Offline = true
-		dev = &absent{info}
-	}
-	if there && dev != old {
-		ns.marks.Attach(dev)
-	}
-	next := ns.sub.newAttributes(cfg, dev)
-	if err != nil {
-		kept := *before
-		kept.dev, kept.space = dev, next.space
-		next = &kept
-	}
-	ns.adopt(next, there && dev != old)
-	if err == nil {
-		err = ns.usable(dev)
-	}
-	return err
-}
-
-// adopt gives the namespace attributes and notifies hosts of the changes they see. opened: its
-// device was opened since, and earlier losses are forgotten.
-func (ns *namespace) adopt(next *attributes, opened bool) {
-	before := ns.cfg.Load()
-	next.drive.Continue(before.drive)
-	next.limiter = qos.NewLimiter(next.limits, before.limiter)
-	ns.setAttributes(next, opened)
-	if next.limiter != before.limiter {
-		for _, c := range ns.Channels() {
-			h := c.User.(*channel).h
-			h.post(h.relink)
-		}
-	}
-	ns.startNotify()
-	if next.anaGroup != before.anaGroup {
-		ns.sub.each(func(c *controller) {
-			if next.visible(c.hostNQN) && before.visible(c.hostNQN) { // else: see changedSince
-				c.h.post(func() { c.gatherANA(c.anaChanged) })
-			}
-		})
-	}
-	ns.changedSince(before)
-}
-
-func (ns *namespace) setAttributes(a *attributes, opened bool) {
-	ns.state.mu.Lock()
-	defer ns.state.mu.Unlock()
-	ns.cfg.Store(a)
-	if opened {
-		ns.state.degraded = false
-	}
-}
-
-// usable says why hosts cannot use a device in place of the one that they know.
-func (ns *namespace) usable(dev backend.Device) error {
-	g, err := newGeometry(dev.Info(), false)
-	if shift := ns.geo.Load().shift; err == nil && g.shift != shift {
-		err = backend.WithHint(fmt.Errorf("the block size cannot change from %d to %d while hosts "+
-			"use the namespace", 1<<shift, 1<<g.shift), "Remove the namespace and add it again.")
-	}
-	return err
-}
-
-// absent is the device of a namespace that has none.
-type absent struct{ info backend.Info }
-
-func (d *absent) Info() backend.Info { return d.info }
-
-func (d *absent) OpenChannel(backend.Reactor) (backend.Channel, error) {
-	return nil, backend.ErrOffline
-}
-
-func (d *absent) Close() error { return nil }
diff --git a/nvme/target/visible.go b/nvme/target/visible.go
index 42177d1e..c6f5e4a5 100644
--- a/nvme/target/visible.go
+++ b/nvme/target/visible.go
@@ -3,34 +3,18 @@ package target
 import (
 	"errors"
 	"slices"
-
-	"github.com/nvmf-target/nvmf-target/backend"
 )
 
 // This file decides which namespaces of its subsystem a host may use. To its controllers others are
 // inactive, as if they did not exist (Base section 3.2.1).
 
-// visible reports whether a host may use the namespace.
-func (a *attributes) visible(hostNQN string) bool { return a.hosts == nil || a.hosts[hostNQN] }
-
 // errHidden is why an IO of a host that may no longer use the namespace is not carried out.
 var errHidden = errors.New("the host may no longer use the namespace")
 
-// check reports whether the host of an IO may still use the namespace.
-func (a *attributes) check(io *backend.IO) error {
-	if a.hosts == nil {
-		return nil
-	}
-	if s := queueOf(io); s == nil || a.hosts[s.ctrl.hostNQN] {
-		return nil
-	}
-	return errHidden
-}
-
 // namespace returns the namespace if the host may use it, else nil.
 func (c *controller) namespace(nsid uint32) *namespace {
 	ns := c.sub.namespaces.Load().get(nsid)
-	if ns != nil && !ns.cfg.Load().visible(c.hostNQN) {
+	if ns != nil && !ns.Attributes().Visible(c.hostNQN) {
 		return nil
 	}
 	return ns
@@ -39,43 +23,20 @@ func (c *controller) namespace(nsid uint32) *namespace {
 // mayChange reports whether a command that has waited may still change the namespace, for others,
 // too: its host may have lost it meanwhile, or the subsystem. Any goroutine.
 func (c *controller) mayChange(ns *namespace) bool {
-	return c.namespace(ns.nsid) == ns && c.permitted() == nil
+	return c.namespace(ns.ID.NSID) == ns && c.permitted() == nil
 }
 
-// namespaces lists the namespaces that the host may use. The caller does not change the list.
-func (c *controller) namespaces() []*namespace { return c.sub.namespacesOf(c.hostNQN) }
-
-// namespacesOf lists the namespaces that a host may use. It looks at all, which are at most
-// MaxNSID. The caller does not change the list.
-func (s *subsystem) namespacesOf(hostNQN string) []*namespace {
-	return visible(s.namespaces.Load().list, hostNQN)
+// namespaces lists the namespaces that the host may use. It looks at all, which are at most
+// namespaces.MaxNSID. The caller does not change the list.
+func (c *controller) namespaces() []*namespace {
+	return visible(c.sub.namespaces.Load().list, c.hostNQN)
 }
 
 // visible returns the namespaces of list that a host may use. It does not change list.
 func visible(list []*namespace, hostNQN string) []*namespace {
-	hidden := func(ns *namespace) bool { return !ns.cfg.Load().visible(hostNQN) }
+	hidden := func(ns *namespace) bool { return !ns.Attributes().Visible(hostNQN) }
 	if !slices.ContainsFunc(list, hidden) {
 		return list
 	}
 	return slices.DeleteFunc(slices.Clone(list), hidden)
 }
-
-// notify tells controllers that a namespace was added, removed or has changed for their hosts. Any
-// goroutine.
-func (ns *namespace) notify(changed func(hostNQN string) bool) {
-	ns.sub.eachSoon(func(c *controller) {
-		if changed(c.hostNQN) {
-			c.h.post(func() { c.namespaceChanged(ns.nsid) })
-		}
-	})
-}
-
-// changedSince tells controllers of the new attributes that their hosts see.
-func (ns *namespace) changedSince(before *attributes) {
-	now := ns.cfg.Load()
-	other := now.uuid != before.uuid || now.nguid != before.nguid || now.eui64 != before.eui64
-	ns.notify(func(hostNQN string) bool {
-		visible := now.visible(hostNQN)
-		return visible != before.visible(hostNQN) || visible && other
-	})
-}
diff --git a/nvme/target/waiting.go b/nvme/target/waiting.go
index f3a2d7d0..165ecb6f 100644
--- a/nvme/target/waiting.go
+++ b/nvme/target/waiting.go
@@ -15,7 +15,7 @@ import (
 func (f *flow) link() {
 	ns := f.ch.ns
 	f.limits.Link(qos.Limiters{
-		f.ch.h.t.hostLimiter(f.host.nqn), ns.sub.settings.Load().limiter, ns.cfg.Load().limiter,
+		f.ch.h.t.hostLimiter(f.host.nqn), ns.sub.settings.Load().limiter, ns.Attributes().Limiter,
 	}, f.host.payer.key, f.ch.h.loop.Now())
 }
 
@@ -49,7 +49,7 @@ func (h *Handler) admit(w *qos.Waiter) {
 	c := w.Owner.(*cmd)
 	c.waited(h)
 	switch parked := c.req.Deferred; {
-	case parked && c.s.ends.node.Listed(): // the transport abandons it
+	case parked && c.s.ends.Listed(): // the transport abandons it
 	case parked:
 		r := c.req
 		r.Dir, r.Length = 0, 0
@@ -130,7 +130,7 @@ const linkSteps = 8
 // dropFlows ends the flows to the namespace of a channel that is removed, and then calls done.
 // Waiting commands go on, and find that there is no namespace.
 func (h *Handler) dropFlows(ch *channel, done func()) {
-	h.latency.Drop(&ch.ns.name)
+	h.latency.Drop(&ch.ns.ID)
 	h.inPieces(func() int {
 		f := ch.flows.First()
 		if f == nil {
diff --git a/nvme/target/walk.go b/nvme/target/walk.go
index e12ec35f..1f25b939 100644
--- a/nvme/target/walk.go
+++ b/nvme/target/walk.go
@@ -2,95 +2,16 @@ package target
 
 import (
 	"github.com/nvmf-target/nvmf-target/backend"
-	"github.com/nvmf-target/nvmf-target/internal/list"
-	"github.com/nvmf-target/nvmf-target/internal/subnet"
 	"github.com/nvmf-target/nvmf-target/nvme"
 	"github.com/nvmf-target/nvmf-target/nvme/target/dispatch"
 )
 
-// The commands of many queues are visited in pieces: for queues that end, and in rounds over all
-// queues of the reactor, for timeouts and fences. A round does not visit commands that come
-// meanwhile. IOs that must not begin between two pieces are refused where devices get them; see
-// dispatch.Channels.Checks.
-
-// walk is a visit of commands. All walks of a reactor are one chain of pieces: however many there
-// are, it does a piece between two polls. Walks of a kind follow one another, hosts take turns at
-// the rounds of fences, and the kinds take turns: preempts of one host delay neither the timeouts
-// and queues of others, nor all of their preempts.
-type walk struct {
-	next func() int // as of list.Pieces
-	done func()
-	node list.Node[walk] // in Handler.own or rounds
-}
-
-// The kinds of walks.
-const (
-	ownWalk   = iota // for timeouts, of which there is one, and queues that end
-	fenceWalk        // the rounds of fences
-	walkKinds
-)
-
-// walkLists are the walks of a reactor.
-type walkLists struct {
-	own      list.List[walk]
-	rounds   list.Turns[subnet.Owner, walk] // that have not begun
-	round    *walk                          // that goes on
-	walkTurn int                            // the kind that took the last step
-}
+// This file visits the commands of queues in pieces, see dispatch.Walk.
 
 // lookMost is how many commands a step of a walk looks at. One that it completes or cancels is a
 // step of its own.
 const lookMost = 8
 
-// start begins a walk of its own kind, after those before it. The caller runs the handler
-// afterwards.
-func (h *Handler) start(w *walk) {
-	h.own.Push(w, &w.node)
-	h.startWalks()
-}
-
-// startRound begins a round for a host, as start does.
-func (h *Handler) startRound(host subnet.Owner, w *walk) {
-	h.rounds.Push(host, w, &w.node)
-	h.startWalks()
-}
-
-func (h *Handler) startWalks() {
-	if h.dispatch.Checks {
-		return
-	}
-	h.dispatch.Checks = true
-	h.inPieces(h.walkOn, func() { h.dispatch.Checks = false })
-}
-
-// walkOn takes a step of the walk of the next kind.
-func (h *Handler) walkOn() int {
-	for range walkKinds {
-		h.walkTurn = (h.walkTurn + 1) % walkKinds
-		if h.round == nil {
-			h.round = h.rounds.Pop()
-		}
-		w := h.round
-		if h.walkTurn == ownWalk {
-			w = h.own.First()
-		}
-		if w == nil {
-			continue
-		}
-		if n := w.next(); n > 0 {
-			return n
-		}
-		if h.walkTurn == ownWalk {
-			h.own.Remove(&w.node)
-		} else {
-			h.round = nil
-		}
-		w.done()
-		return 1
-	}
-	return 0
-}
-
 // visitAll returns the next of a walk that calls fn with the commands of the queues that exist when
 // it begins, except queues that skips selects.
 func (h *Handler) visitAll(skips func(*session) bool, fn func(*cmd) bool) (next func() int) {
@@ -108,6 +29,9 @@ func (h *Handler) visitAll(skips func(*session) bool, fn func(*cmd) bool) (next
 	}
 }
 
+// looks is the number of steps in which a queue ends: all of its commands are looked at.
+func (s *session) looks() int { return 1 + s.used/lookMost }
+
 // look calls fn with a few commands of a queue from at on, until it returns true: it has completed
 // the command, or canceled something. look returns false if there are none.
 func (s *session) look(at *int, fn func(c *cmd) bool) bool {
@@ -127,16 +51,16 @@ func (s *session) look(at *int, fn func(c *cmd) bool) bool {
 // to be disconnected. The caller runs the handler afterwards.
 func (h *Handler) end(s *session) {
 	s.endAt = 0
-	if s.ends.node.Listed() {
+	if s.ends.Listed() {
 		return
 	}
-	s.ends = walk{done: s.endIfIdle, next: func() int {
+	s.ends = dispatch.Walk{Done: s.endIfIdle, Next: func() int {
 		if s.look(&s.endAt, h.endCommand) {
 			return 1
 		}
 		return 0
 	}}
-	h.start(&s.ends)
+	h.dispatch.Start(&s.ends)
 }
 
 // endCommand ends the wait of a command. If the queue is over, it has the devices give back the IOs
@@ -172,15 +96,11 @@ func (h *Handler) endCommand(c *cmd) bool {
 
 // exclude visits the commands of the hosts that a round of fences excludes. It implements
 // dispatch.Config.Exclude.
-func (h *Handler) exclude(to *dispatch.Channel, r *dispatch.Round) {
+func (h *Handler) exclude(to *dispatch.Channel, r *dispatch.Round) (next func() int) {
 	ch := to.User.(*channel)
-	next := h.visitAll(func(s *session) bool {
+	return h.visitAll(func(s *session) bool {
 		return s.ctrl == nil || s.ctrl.sub != ch.ns.sub || r.Skips(&s.queue)
 	}, func(c *cmd) bool { return ch.exclude(r, c) })
-	h.startRound(r.Host(), &walk{done: r.End, next: func() int {
-		r.Begin()
-		return next()
-	}})
 }
 
 // exclude ends the IOs of a command in the namespace. It completes IOs that the device does not
diff --git a/nvme/target/zerocopy.go b/nvme/target/zerocopy.go
index 84e64c2c..7a780cdc 100644
--- a/nvme/target/zerocopy.go
+++ b/nvme/target/zerocopy.go
@@ -44,7 +44,7 @@ func (c *cmd) canUse(segs []mem.Segment) bool {
 	if c.io.Op == backend.OpWrite {
 		return c.s.q.CanReceiveInto(segs)
 	}
-	m := c.ch.ns.marks
+	m := c.ch.ns.Marks
 	if m.Begun() && m.Marked(c.io.Off, c.io.Len) {
 		return false // it fails in Execute
 	}
