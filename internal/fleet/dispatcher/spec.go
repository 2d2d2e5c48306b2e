package dispatcher

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/yaml"

	"github.com/pullgate/pullgate/internal/config"
	"github.com/pullgate/pullgate/internal/fleet/api"
	"github.com/pullgate/pullgate/internal/operator/release"
	"github.com/pullgate/pullgate/pkg/policy"
)

// startLimit is how long a pod may take to be started, with the pull of its image.
const startLimit = 5 * time.Minute

// longestAttempt is more than an attempt has time for, with the longest confirmWithin and probation.
const longestAttempt = startLimit + 2*time.Hour + 5*time.Minute

// A rollout is a Rollout with what follows from it.
type rollout struct {
	*api.Rollout

	selector labels.Selector
	invalid  error  // what can never work
	plan     string // identifies what the waves carry out
	hash     string // of the configuration
	image    string
	version  string // of the image
}

// newRollout examines a Rollout. own is the image of this program.
func newRollout(r *api.Rollout, own, version string) *rollout {
	s := &r.Spec
	x := &rollout{Rollout: r, image: s.Image, version: s.Version, selector: labels.Nothing()}
	if x.image == "" && (s.Version == version || x.off()) { // any version takes another one off
		x.image, x.version = own, version
	}
	x.hash = sum(s.Configuration)
	selector, err := metav1.LabelSelectorAsSelector(s.NodeSelector)
	if err == nil {
		x.selector = selector
	}
	if err != nil {
		err = fmt.Errorf("spec.nodeSelector: %w", err)
	}
	if !x.off() {
		if x.image == "" {
			err = errors.Join(err, fmt.Errorf("spec.image: required, because the dispatcher has the version %s, not %s",
				version, s.Version))
		}
		err = errors.Join(err, checkConfiguration(s))
		if s.PublicKey != "" {
			if _, wrong := release.ParseKey([]byte(s.PublicKey)); wrong != nil {
				err = errors.Join(err, fmt.Errorf("spec.publicKey: %w", wrong))
			}
		}
	}
	x.invalid = err
	// What does not change what becomes of a node does not begin anew.
	planned := *s
	planned.Waves, planned.FailureBudget, planned.Paused, planned.Soak = nil, nil, false, metav1.Duration{}
	planned.StartupTaint = false
	text, _ := json.Marshal(planned) // of plain values
	x.plan = sum(string(r.UID) + strconv.FormatBool(x.deleting()) + string(text))[:16]
	return x
}

func sum(text string) string {
	h := sha256.Sum256([]byte(text))
	return hex.EncodeToString(h[:])
}

func (r *rollout) deleting() bool { return r.DeletionTimestamp != nil }

// off reports whether pullgate shall be on no node of the Rollout.
func (r *rollout) off() bool { return r.Spec.Mode == api.ModeOff || r.deleting() }

// checkConfiguration returns why a configuration can never work on any node.
func checkConfiguration(s *api.RolloutSpec) error {
	c, err := config.ParseForOthers([]byte(s.Configuration))
	if err != nil {
		return fmt.Errorf("spec.configuration: %w", err)
	}
	var errs []error
	never := func(is bool, text string) {
		if is {
			errs = append(errs, errors.New("spec.configuration: "+text))
		}
	}
	var fields map[string]any
	if err := yaml.Unmarshal([]byte(s.Configuration), &fields); err != nil {
		return fmt.Errorf("spec.configuration: %w", err)
	}
	_, has := fields["noPullImageSecretRecheck"]
	never(has, "noPullImageSecretRecheck: remove it, spec.mode decides")
	never(!c.PodSource.NodeCondition, "podSource.nodeCondition: must be true, a node is confirmed by its condition")
	never(c.PodSource.NodeName != "", "podSource.nodeName: remove it, each node has its own")
	never(s.Mode == api.ModeEnforce && c.Policy().Mode() == policy.ModeNeverVerify,
		"imagePullCredentialsVerificationPolicy: must not be NeverVerify with the mode Enforce")
	return errors.Join(errs...)
}

// share returns a number of nodes, or a share of total.
func share(v intstr.IntOrString, total int, round func(float64) float64) int {
	if v.Type == intstr.Int {
		return v.IntValue()
	}
	percent, err := strconv.Atoi(strings.TrimSuffix(v.StrVal, "%"))
	if err != nil { // which the schema refuses
		return 0
	}
	return int(round(float64(total) * float64(percent) / 100))
}

// wave returns how many nodes are changed in a wave, at least one.
func (r *rollout) wave(number int32, selected int) int {
	waves := r.Spec.Waves
	if len(waves) == 0 {
		waves = []intstr.IntOrString{
			intstr.FromInt32(1), intstr.FromString("1%"), intstr.FromString("10%"), intstr.FromInt32(50),
		}
	}
	i := min(max(int(number)-1, 0), len(waves)-1)
	return max(share(waves[i], selected, math.Ceil), 1)
}

func (r *rollout) budget(selected int) int {
	if r.Spec.FailureBudget == nil {
		return 0
	}
	return share(*r.Spec.FailureBudget, selected, math.Floor)
}
