//go:build cgo

#include "bind.h"

#include <errno.h>
#include <string.h>
#include <netinet/in.h>

// CHAIN work requests are chained on the stack and posted with one call of the driver.
#define CHAIN 64

static uint64_t posted(uint32_t n, int err)
{
	return (uint64_t)(uint32_t)err << 32 | n;
}

uint64_t vb_post_send(struct ibv_qp *qp, const struct vb_send_wr *wrs, uint32_t n,
		      const struct ibv_sge *sges, uint64_t nsges)
{
	struct ibv_send_wr chain[CHAIN], *bad;
	uint32_t done = 0;

	while (done < n) {
		uint32_t m = n - done < CHAIN ? n - done : CHAIN;
		for (uint32_t i = 0; i < m; i++) {
			const struct vb_send_wr *w = &wrs[done + i];
			struct ibv_send_wr *c = &chain[i];
			if (w->num_sge && (uint64_t)w->first_sge + w->num_sge > nsges)
				return posted(done, EINVAL);
			c->wr_id = w->wr_id;
			c->next = c + 1;
			c->sg_list = (struct ibv_sge *)sges + w->first_sge;
			c->num_sge = (int)w->num_sge;
			c->opcode = (enum ibv_wr_opcode)w->opcode;
			c->send_flags = w->flags;
			c->invalidate_rkey = w->invalidate_rkey;
			c->wr.rdma.remote_addr = w->remote_addr;
			c->wr.rdma.rkey = w->rkey;
		}
		chain[m - 1].next = NULL;
		bad = NULL;
		int err = ibv_post_send(qp, chain, &bad);
		if (err)
			return posted(done + (bad ? (uint32_t)(bad - chain) : 0), err < 0 ? -err : err);
		done += m;
	}
	return posted(done, 0);
}

// Receives of a queue pair and of a shared queue differ only in the call.
#define POST_RECV(call) \
	struct ibv_recv_wr chain[CHAIN], *bad; \
	uint32_t done = 0; \
	while (done < n) { \
		uint32_t m = n - done < CHAIN ? n - done : CHAIN; \
		for (uint32_t i = 0; i < m; i++) { \
			struct vb_recv_wr *w = &wrs[done + i]; \
			if (w->num_sge > 2) \
				return posted(done, EINVAL); \
			chain[i].wr_id = w->wr_id; \
			chain[i].next = &chain[i + 1]; \
			chain[i].sg_list = w->sge; \
			chain[i].num_sge = (int)w->num_sge; \
		} \
		chain[m - 1].next = NULL; \
		bad = NULL; \
		int err = call; \
		if (err) \
			return posted(done + (bad ? (uint32_t)(bad - chain) : 0), err < 0 ? -err : err); \
		done += m; \
	} \
	return posted(done, 0);

uint64_t vb_post_recv(struct ibv_qp *qp, struct vb_recv_wr *wrs, uint32_t n)
{
	POST_RECV(ibv_post_recv(qp, chain, &bad))
}

uint64_t vb_post_srq_recv(struct ibv_srq *srq, struct vb_recv_wr *wrs, uint32_t n)
{
	POST_RECV(ibv_post_srq_recv(srq, chain, &bad))
}

int vb_poll(struct ibv_cq *cq, struct vb_wc *wcs, int n)
{
	struct ibv_wc in[CHAIN];
	int done = 0;

	while (done < n) {
		int want = n - done < CHAIN ? n - done : CHAIN;
		int got = ibv_poll_cq(cq, want, in);
		if (got < 0)
			return done ? done : got;
		for (int i = 0; i < got; i++) {
			struct vb_wc *o = &wcs[done + i];
			o->wr_id = in[i].wr_id;
			o->status = in[i].status;
			o->opcode = in[i].opcode;
			o->vendor_err = in[i].vendor_err;
			o->byte_len = in[i].byte_len;
			o->qp_num = in[i].qp_num;
			o->flags = in[i].wc_flags;
			o->invalidated_rkey = in[i].wc_flags & IBV_WC_WITH_INV ? in[i].invalidated_rkey : 0;
		}
		done += got;
		if (got < want)
			break;
	}
	return done;
}

int vb_req_notify(struct ibv_cq *cq)
{
	int err = ibv_req_notify_cq(cq, 0);
	return err < 0 ? -err : err;
}

int vb_drain(struct ibv_comp_channel *ch)
{
	struct ibv_cq *last = NULL, *cq;
	unsigned int unacked = 0;
	int total = 0, err;
	void *context;

	// Acknowledging takes a lock, so events of one queue are acknowledged together; but at every
	// change of queue, because the queue may be destroyed later.
	while (!(err = ibv_get_cq_event(ch, &cq, &context))) {
		if (cq != last && unacked) {
			ibv_ack_cq_events(last, unacked);
			unacked = 0;
		}
		last = cq;
		unacked++;
		total++;
	}
	err = errno;
	if (unacked)
		ibv_ack_cq_events(last, unacked);
	return total || err == EAGAIN ? total : -err;
}

int vb_query(struct ibv_context *ctx, struct vb_device_attr *out)
{
	memset(out, 0, sizeof *out);
	int err = ibv_query_device(ctx, &out->dev);
	out->iwarp = ctx->device->transport_type == IBV_TRANSPORT_IWARP ||
		     ctx->device->node_type == IBV_NODE_RNIC;
	out->comp_vectors = ctx->num_comp_vectors;
	return err < 0 ? -err : err;
}

int vb_get_async(struct ibv_context *ctx, struct vb_async *out)
{
	memset(out, 0, sizeof *out);
	if (ibv_get_async_event(ctx, &out->event))
		return errno ? errno : EIO;
	switch (out->event.event_type) {
	case IBV_EVENT_CQ_ERR:
		out->cq = out->event.element.cq;
		break;
	case IBV_EVENT_SRQ_ERR:
	case IBV_EVENT_SRQ_LIMIT_REACHED:
		out->srq = out->event.element.srq;
		break;
	case IBV_EVENT_QP_FATAL:
	case IBV_EVENT_QP_REQ_ERR:
	case IBV_EVENT_QP_ACCESS_ERR:
	case IBV_EVENT_COMM_EST:
	case IBV_EVENT_SQ_DRAINED:
	case IBV_EVENT_PATH_MIG:
	case IBV_EVENT_PATH_MIG_ERR:
	case IBV_EVENT_QP_LAST_WQE_REACHED:
		out->qp_num = out->event.element.qp->qp_num;
		break;
	default:
		break;
	}
	return 0;
}

int vb_reg_mr(struct ibv_pd *pd, void *addr, size_t len, int access, struct ibv_mr **out)
{
	*out = ibv_reg_mr(pd, addr, len, access);
	return *out ? 0 : errno;
}

int vb_create_srq(struct ibv_pd *pd, uint32_t max_wr, uint32_t max_sge, struct ibv_srq **out)
{
	struct ibv_srq_init_attr attr = {.attr = {.max_wr = max_wr, .max_sge = max_sge}};
	*out = ibv_create_srq(pd, &attr);
	return *out ? 0 : errno;
}

int vb_to_error(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};
	return ibv_modify_qp(qp, &attr, IBV_QP_STATE);
}

int vb_shorten_rnr_timer(struct ibv_qp *qp)
{
	// 14 is 1.28 ms: InfiniBand Architecture Specification, volume 1, "RNR NAK Timer Field".
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTS, .min_rnr_timer = 14};
	return ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_MIN_RNR_TIMER);
}

static struct sockaddr *to_sockaddr(const struct vb_addr *a, struct sockaddr_storage *s)
{
	memset(s, 0, sizeof *s);
	if (!a->valid)
		return NULL;
	if (a->is6) {
		struct sockaddr_in6 *in6 = (struct sockaddr_in6 *)s;
		in6->sin6_family = AF_INET6;
		memcpy(&in6->sin6_addr, a->addr, 16);
		in6->sin6_port = htons(a->port);
		in6->sin6_scope_id = a->scope;
	} else {
		struct sockaddr_in *in = (struct sockaddr_in *)s;
		in->sin_family = AF_INET;
		memcpy(&in->sin_addr, a->addr, 4);
		in->sin_port = htons(a->port);
	}
	return (struct sockaddr *)s;
}

static void from_sockaddr(const struct sockaddr *s, struct vb_addr *a)
{
	memset(a, 0, sizeof *a);
	if (s->sa_family == AF_INET) {
		const struct sockaddr_in *in = (const struct sockaddr_in *)s;
		memcpy(a->addr, &in->sin_addr, 4);
		a->port = ntohs(in->sin_port);
		a->valid = 1;
	} else if (s->sa_family == AF_INET6) {
		const struct sockaddr_in6 *in6 = (const struct sockaddr_in6 *)s;
		memcpy(a->addr, &in6->sin6_addr, 16);
		a->port = ntohs(in6->sin6_port);
		a->scope = in6->sin6_scope_id;
		a->valid = a->is6 = 1;
	}
}

int vb_listen(struct rdma_cm_id *id, const struct vb_addr *addr, int backlog, uint8_t tos,
	      const char **call)
{
	struct sockaddr_storage s;
	struct sockaddr *sa = to_sockaddr(addr, &s);
	int on = 1;

	*call = "rdma_set_option";
	if (rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &on, sizeof on))
		return errno;
	// One address family, regardless of net.ipv6.bindv6only: see cm.listen.
	if (rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &on, sizeof on))
		return errno;
	if (tos && rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &tos, sizeof tos))
		return errno;
	*call = "rdma_bind_addr";
	if (rdma_bind_addr(id, sa))
		return errno;
	*call = "rdma_listen";
	return rdma_listen(id, backlog) ? errno : 0;
}

int vb_resolve_addr(struct rdma_cm_id *id, const struct vb_addr *src, const struct vb_addr *dst,
		    int ms)
{
	struct sockaddr_storage s, d;
	return rdma_resolve_addr(id, to_sockaddr(src, &s), to_sockaddr(dst, &d), ms) ? errno : 0;
}

void vb_addrs(struct rdma_cm_id *id, struct vb_addr *local, struct vb_addr *remote)
{
	from_sockaddr(rdma_get_local_addr(id), local);
	from_sockaddr(rdma_get_peer_addr(id), remote);
}

int vb_create_qp(struct rdma_cm_id *id, struct ibv_pd *pd, struct vb_qp_init *q)
{
	for (;;) {
		struct ibv_qp_init_attr attr = {
			.send_cq = q->send_cq, .recv_cq = q->recv_cq, .srq = q->srq, .qp_type = IBV_QPT_RC,
			.cap = {
				.max_send_wr = q->max_send_wr, .max_recv_wr = q->max_recv_wr,
				.max_send_sge = q->max_send_sge, .max_recv_sge = q->max_recv_sge,
				.max_inline_data = q->max_inline,
			},
		};
		if (!rdma_create_qp(id, pd, &attr)) {
			q->max_inline = attr.cap.max_inline_data;
			return 0;
		}
		if (!q->max_inline)
			return errno;
		q->max_inline = 0; // a device without inline data, or not for so much
	}
}

int vb_connect(struct rdma_cm_id *id, struct vb_conn_param *p, int accept)
{
	struct rdma_conn_param cp = {
		.private_data = p->private_data, .private_data_len = p->private_len,
		.responder_resources = p->responder_resources, .initiator_depth = p->initiator_depth,
		.flow_control = p->flow_control, .retry_count = p->retry_count,
		.rnr_retry_count = p->rnr_retry_count,
	};
	return (accept ? rdma_accept(id, &cp) : rdma_connect(id, &cp)) ? errno : 0;
}

int vb_reject(struct rdma_cm_id *id, const uint8_t *data, uint8_t len)
{
	return rdma_reject(id, data, len) ? errno : 0;
}

int vb_get_event(struct rdma_event_channel *ch, struct vb_event *out)
{
	struct rdma_cm_event *ev;

	memset(out, 0, sizeof *out);
	if (rdma_get_cm_event(ch, &ev))
		return errno;
	out->event = ev;
	out->id = ev->id;
	out->listen_id = ev->listen_id;
	out->type = ev->event;
	out->status = ev->status;
	const struct rdma_conn_param *cp = &ev->param.conn;
	out->param.responder_resources = cp->responder_resources;
	out->param.initiator_depth = cp->initiator_depth;
	out->param.flow_control = cp->flow_control;
	out->param.retry_count = cp->retry_count;
	out->param.rnr_retry_count = cp->rnr_retry_count;
	if (cp->private_data) {
		out->param.private_len = cp->private_data_len;
		memcpy(out->param.private_data, cp->private_data, cp->private_data_len);
	}
	return 0;
}
