package podsource

import (
	"context"
	"encoding/json"
	"errors"
	"reflect"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/pullgate/pullgate/internal/fleet/api"
)

const (
	reportCheck = 15 * time.Second // how often the content is asked for
	// The first write follows the start in 15 to 45 seconds, and each further one 10 minutes ± 10 % after the last.
	reportFirst, reportFirstSpread = 15 * time.Second, 2.
	reportLeast, reportSpread      = 9 * time.Minute, 2. / 9
)

const (
	reportsResource = "nodereports"
	reportsPath     = "/apis/" + api.Group + "/" + api.Version + "/" + reportsResource
)

// errNoNodeReports means that the API server does not have the resource.
var errNoNodeReports = errors.New("podsource: the API server has no NodeReports")

// reportPause returns the back-off after failures. An absent definition may stay absent.
func reportPause() wait.Backoff {
	return wait.Backoff{Duration: 15 * time.Second, Cap: 10 * time.Minute, Steps: 20, Factor: 2, Jitter: 1}
}

// reportWriter holds what was written of the report.
type reportWriter struct {
	*client
	node    string
	written *api.Report // at the API server, as far as known, without times; nil before the first write
	next    time.Time   // of the next write or, while failing, of the next try
	failing bool
	backoff wait.Backoff
}

// keepReport writes the NodeReport of the node until ctx ends. What was written stays after that, and ages.
func (s *Source) keepReport(ctx context.Context, c *client) {
	if s.options.Report == nil {
		return
	}
	w := reportWriter{client: c, node: s.NodeName(), next: time.Now().Add(wait.Jitter(reportFirst, reportFirstSpread))}
	for ctx.Err() == nil {
		if now, known := s.options.Report(); known && !time.Now().Before(w.next) {
			w.write(ctx, now)
		}
		check := time.NewTimer(min(wait.Jitter(reportCheck, .2), max(time.Second, time.Until(w.next))))
		select {
		case <-check.C:
		case <-ctx.Done():
			check.Stop()
		}
	}
}

func (w *reportWriter) write(ctx context.Context, now api.Report) {
	log := klog.FromContext(ctx).WithValues("node", w.node)
	bounded, cancel := context.WithTimeout(ctx, getTimeout)
	defer cancel()
	err := w.put(bounded, now)
	switch {
	case ctx.Err() != nil:
		return
	case err == nil:
		if w.failing || w.written == nil {
			log.Info("Wrote the report of the node", "refused", len(now.Refused), "observedSince", now.ObservedSince.Time)
		}
		w.failing, w.next = false, time.Now().Add(wait.Jitter(reportLeast, reportSpread))
		now.ReportTimes = api.ReportTimes{}
		w.written = &now
		return
	case !w.failing:
		hint := "grant create and patch of nodereports to system:nodes, or set podSource.nodeReport to false"
		if errors.Is(err, errNoNodeReports) {
			hint = "install the definition of NodeReport with the chart, or set podSource.nodeReport to false"
		}
		log.Info("Failed to write the report of the node, will retry", "reason", reasonOf(err), "err", err, "hint", hint)
		w.backoff, w.failing = reportPause(), true
	}
	w.next = time.Now().Add(w.backoff.Step())
}

// put merges the report into the object, only its times if nothing else has changed, and makes the object if there is
// none. Before the first write it asks whether there are NodeReports: a cluster without them sees no forbidden request.
func (w *reportWriter) put(ctx context.Context, now api.Report) error {
	if w.written == nil {
		if err := w.defined(ctx); err != nil {
			return err
		}
	}
	var content any = now
	bare := now
	if bare.ReportTimes = (api.ReportTimes{}); w.written != nil && reflect.DeepEqual(bare, *w.written) {
		content = now.ReportTimes
	}
	err := w.send(ctx, w.core.Patch(types.MergePatchType).AbsPath(reportsPath, w.node), map[string]any{"report": content})
	if !apierrors.IsNotFound(err) {
		return err
	}
	node := &corev1.Node{}
	if err := w.core.Get().Resource("nodes").Name(w.node).MaxRetries(0).Do(ctx).Into(node); err != nil {
		return err
	}
	return w.send(ctx, w.core.Post().AbsPath(reportsPath), api.NodeReport{
		TypeMeta: metav1.TypeMeta{APIVersion: api.Group + "/" + api.Version, Kind: "NodeReport"},
		ObjectMeta: metav1.ObjectMeta{Name: w.node, OwnerReferences: []metav1.OwnerReference{{
			APIVersion: "v1", Kind: "Node", Name: w.node, UID: node.UID,
		}}},
		Report: now,
	})
}

// defined returns errNoNodeReports if the API server does not have the resource, which every identity may ask.
func (w *reportWriter) defined(ctx context.Context) error {
	text, err := w.core.Get().AbsPath(strings.TrimSuffix(reportsPath, "/"+reportsResource)).
		SetHeader("Accept", "application/json").MaxRetries(0).Do(ctx).Raw()
	if apierrors.IsNotFound(err) {
		return errNoNodeReports
	}
	if err != nil {
		return err
	}
	var known metav1.APIResourceList
	if err := json.Unmarshal(text, &known); err != nil {
		return err
	}
	if !slices.ContainsFunc(known.APIResources, func(r metav1.APIResource) bool { return r.Name == reportsResource }) {
		return errNoNodeReports
	}
	return nil
}

func (w *reportWriter) send(ctx context.Context, r *rest.Request, body any) error {
	text, err := json.Marshal(body)
	if err != nil {
		return err
	}
	// A patch has set its own type.
	if _, isObject := body.(api.NodeReport); isObject {
		r = r.SetHeader("Content-Type", "application/json")
	}
	return r.SetHeader("Accept", "application/json").Body(text).MaxRetries(0).Do(ctx).Error()
}
