//go:build cgo

#include "stub.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>

static int take(struct vb_stub *s, uint64_t wr_id, const struct ibv_sge *sges, int n)
{
	if (!s->room)
		return ENOMEM;
	s->room--;
	s->posted++;
	s->sum += wr_id;
	for (int i = 0; i < n; i++)
		s->sum += sges[i].addr + sges[i].length + sges[i].lkey;
	return 0;
}

static int post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	struct vb_stub *s = qp->qp_context;

	for (; wr; wr = wr->next) {
		int err = take(s, wr->wr_id, wr->sg_list, wr->num_sge);
		if (err) {
			*bad = wr;
			return err;
		}
		s->sum += wr->opcode + wr->send_flags + wr->wr.rdma.remote_addr +
			  wr->wr.rdma.rkey + wr->invalidate_rkey;
	}
	return 0;
}

static int receives(struct vb_stub *s, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	for (; wr; wr = wr->next) {
		int err = take(s, wr->wr_id, wr->sg_list, wr->num_sge);
		if (err) {
			*bad = wr;
			return err;
		}
	}
	return 0;
}

static int post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	return receives(qp->qp_context, wr, bad);
}

static int post_srq_recv(struct ibv_srq *srq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	return receives(srq->srq_context, wr, bad);
}

static int poll_cq(struct ibv_cq *cq, int n, struct ibv_wc *wc)
{
	struct vb_stub *s = cq->cq_context;

	if (s->completions < 0)
		return -1;
	if (n > s->completions)
		n = s->completions;
	for (int i = 0; i < n; i++)
		wc[i] = (struct ibv_wc){
			.wr_id = s->completions - i, .status = 1, .opcode = IBV_WC_RECV,
			.vendor_err = 3, .byte_len = 4, .invalidated_rkey = 5, .qp_num = 6,
			.wc_flags = IBV_WC_WITH_INV,
		};
	s->completions -= n;
	return n;
}

static int req_notify(struct ibv_cq *cq, int solicited)
{
	(void)cq;
	return solicited ? EINVAL : 0;
}

struct vb_stub *vb_stub_new(void)
{
	struct vb_stub *s = calloc(1, sizeof *s);

	if (!s)
		return NULL;
	s->ctx.ops.post_send = post_send;
	s->ctx.ops.post_recv = post_recv;
	s->ctx.ops.post_srq_recv = post_srq_recv;
	s->ctx.ops.poll_cq = poll_cq;
	s->ctx.ops.req_notify_cq = req_notify;
	s->qp.context = s->srq.context = s->cq.context = &s->ctx;
	s->qp.qp_context = s->srq.srq_context = s->cq.cq_context = s;
	return s;
}
