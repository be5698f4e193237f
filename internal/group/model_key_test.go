package group

import (
	"fmt"
	"strings"
	"time"
)

// key returns equal texts for worlds with equal futures: times are relative, and versions of the
// record are either its version or not.
func (x *model) key(w *world) []byte {
	k := x.buf[:0]
	num := func(v int) { k = append(k, byte(v), byte(v>>8)) }
	flags := func(bits ...bool) {
		v := 0
		for i, b := range bits {
			if b {
				v |= 1 << i
			}
		}
		num(v)
	}
	text := func(s string) {
		k = append(k, s...)
		k = append(k, '|')
	}
	ops := func(list []op) {
		num(len(list))
		for i := range list {
			o, r := &list[i], &list[i].result
			num(int(o.action.Op))
			text(o.id)
			text(o.action.Over)
			if o.action.Record != nil {
				text(x.recordKey(o.action.Record))
				flags(o.action.Version == w.version)
			}
			for j := range o.action.Instances {
				text(o.action.Instances[j].ID)
			}
			if o.applied {
				flags(r.Err == ErrFenced, r.Err == ErrConflict, r.Err == ErrHeld, r.Err == ErrLost)
				text(r.Lessee)
				if r.Record != nil {
					text(x.recordKey(r.Record))
				}
				flags(r.Version == w.version)
				text(strings.Join(r.Present, " "))
			}
			flags(o.applied)
		}
	}
	b := &w.left
	for _, v := range []int{
		b.ticks, b.pauses, b.crashes, b.slips, b.delays, b.faults, b.drains, b.strangers,
		b.evictions, b.moves, w.image,
		w.acked, w.path, len(w.fences), len(w.writes), b.preempts,
	} {
		num(v)
	}
	text(x.recordKey(w.record))
	if w.leaseEnd > w.now {
		text(w.lessee)
		num(w.leaseEnd - w.now)
	} else {
		text("")
	}
	for _, f := range w.fences {
		text(f.id)
		num(f.end - w.now)
	}
	for _, d := range w.writes {
		text(d.id)
		num(d.gateway)
		num(d.value)
		flags(d.applied, d.revoked)
		num(d.left)
	}
	ops(w.ghosts)
	for g := range w.gateways {
		gw := &w.gateways[g]
		m := &gw.m
		flags(gw.paused, gw.crashed, gw.asleep)
		num(gw.births)
		num(m.failures)
		if gw.crashed {
			continue
		}
		num(int(gw.access))
		ops(gw.ops)
		num(int(m.phase))
		flags(m.storing, m.renewing, m.imaging, m.open, m.refused, m.fresh, m.again, m.held, m.free,
			m.idle, m.registered, m.opened, m.draining, m.drained, m.lasting, m.leaving,
			m.wants, m.hosts, m.asking, m.version == w.version)
		if m.record != nil {
			text(x.recordKey(m.record))
		}
		text(m.lessee)
		text(m.fenced)
		text(m.fencing)
		text(m.taker)
		text(m.last)
		text(m.evict)
		text(m.yield)
		text(strings.Join(m.present, " "))
		now := w.clock(g)
		for _, at := range []time.Duration{
			m.until, m.renewAt, m.readAt, m.fenceAt, m.takerAt, m.holdOff, m.connectAt,
			m.askAt,
		} {
			num(int(max(at-now, 0)))
		}
		if m.free {
			num(int(min(now-m.freeAt, settings.Lease)))
		}
		num(int(min(now-m.sent, 4)))
		num(int(min(now-m.sentAt, 7)))
	}
	x.buf = k
	return k
}

// recordKey returns a text for the content of a record.
func (x *model) recordKey(r *Record) string {
	if s, ok := x.keys[r]; ok {
		return s
	}
	s := fmt.Sprint(r.Taker, r.Claim)
	if r.Holder != nil {
		s += "h" + r.Holder.ID
	}
	for i := range r.Instances {
		s += "i" + r.Instances[i].ID
		if r.Instances[i].Hosts {
			s += "!"
		}
	}
	for i := range r.Fenced {
		s += "f" + r.Fenced[i].ID
		if r.Fenced[i].Ended {
			s += "!"
		}
	}
	x.keys[r] = s
	return s
}
