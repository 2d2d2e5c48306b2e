package gate_test

import (
	"fmt"
	"math/rand/v2"
	"time"
)

// Image names of the model, in normal form.
const (
	aliceApp1   = "repo.test/alice/app:1" // for alice's credentials
	aliceApp2   = "repo.test/alice/app:2"
	bobApp      = "repo.test/bob/app:1"      // for bob's
	openApp     = "mallory.test/open:1"      // for all pods; bob's registry
	baseImage   = "docker.io/library/base:1" // for all pods, and on the allowlist
	sharedApp   = "repo.test/shared/app:1"   // for both tenants
	evilName    = "docker.io/library/evil:1" // in no registry, and on the allowlist
	mineName    = "repo.test/bob/mine:1"     // in no registry
	systemImage = "quay.test/system/dns:1"   // for the credential that the node offers
	anID        = "sha256:1"                 // a prefix of an image ID
	anotherID   = "sha256:222222222222"      // another one
	idNames     = 2                          // the last ones of modelNames
)

const (
	systemNamespace  = "kube-system"
	operatorPassword = "op"
)

var (
	checkpointNames = []string{"repo.test/bob/ck:7", "repo.test/bob/ck:8", "repo.test/bob/ck:9"}
	// modelNames are all names that operations use.
	modelNames = []string{
		aliceApp1, aliceApp2, bobApp, openApp, baseImage, sharedApp, evilName, mineName, systemImage,
		checkpointNames[0], checkpointNames[1], checkpointNames[2], anID, anotherID,
	}
)

// A slot is one place for a pod; after its pod has ended another pod uses it.
type slot struct {
	who, namespace, source string
}

var slots = []slot{
	{"alice-0", "alice", "api"},
	{"alice-1", "alice", "api"},
	{"bob-0", "bob", "api"},
	{"bob-1", "bob", "api"},
	{"static", "infra", "file"},
	{"system", systemNamespace, "api"},
}

// An opKind is one kind of operation.
type opKind uint8

const (
	opImportFirst    opKind = iota // an operator imports an image before the first start of pullgated
	opPrecheck                     // a kubelet asks whether an image is present
	opPull                         // a kubelet pulls an image
	opCreate                       // a kubelet creates a container
	opStart                        // a kubelet starts the newest container of a pod
	opRun                          // a kubelet does all of that
	opHonest                       // the same for a pod with a tenant that has a good credential; that must succeed
	opRestorePod                   // a kubelet restores a pod from a checkpoint
	opRemove                       // a kubelet removes an image
	opDirectRemove                 // an operator or a cleaner removes an image in the runtime
	opUntag                        // an operator removes a name in the runtime
	opTag                          // an operator adds a name in the runtime
	opImport                       // an operator imports an image into the runtime
	opPush                         // a user pushes another image under a name
	opCheckpoint                   // bob pushes another checkpoint
	opRotate                       // a tenant changes the content of a Secret
	opRecreate                     // a tenant deletes a Secret and creates it again
	opRevoke                       // an operator revokes
	opAccept                       // an operator accepts images as preloaded
	opForget                       // an operator forgets preloaded marks
	opPolicy                       // an operator changes the policy
	opEndPod                       // a pod ends
	opNewSeen                      // a kubelet restarts: a pod gets a new config.seen
	opRestart                      // pullgated restarts
	opKill                         // pullgated is killed, and restarts
	opLose                         // pullgated is killed, and its store is lost
	opTrust                        // an operator ends the distrust of the store
	opRuntimeRestart               // the runtime restarts
	opOutage                       // the registries become unreachable, or reachable again
	opRelease                      // a waiting call continues
	opCancel                       // the client of a waiting call disconnects
	opLate                         // the runtime ends a call without a waiting client
	opWait                         // time passes
	// an image is signed or its signature removed, the policy gets another key, or pullgate-policyd stops
	opSign
	opAccess  // an operator changes the files of kind ImageAccess
	opNode    // an operator changes the namespaces of the node's credentials
	opAccount // a service account gets another token, or is deleted and created again
	opAtOnce  // a kubelet pulls an image for two pods of a tenant at once
	opKinds
)

// An op is one operation. Its meaning does not depend on the operations before it, so any part of a sequence is a
// sequence.
type op struct {
	kind    opKind
	pod     uint8 // a slot
	name    uint8 // one of modelNames
	other   uint8 // another one
	content content
	cred    credentialKind
	how     how   // how its call is interrupted, if it is
	n       uint8 // a choice that depends on the kind
	gap     time.Duration
}

// A credentialKind says which credential a kubelet uses for a pull.
type credentialKind uint8

const (
	noCredential   credentialKind = iota
	secretContent                 // the content of the first Secret of the pod's namespace
	otherContent                  // the content of the second Secret
	firstPassword                 // the first password of the tenant
	junk                          // unknown to every registry
	nodeCredential                // offered by the node
	accountToken                  // given out for the service account of the pod's namespace
	oldToken                      // the same, an earlier one
	stolenToken                   // given out for another tenant's
	credentialKinds
)

// wait returns the duration of an opWait.
func (o op) wait() time.Duration {
	switch n := o.n % 16; {
	case n < 6:
		return 2 * time.Second
	case n < 9:
		return 15 * time.Second
	case n < 13:
		return 61 * time.Second
	case n < 15:
		return 6 * time.Minute // proofs expire after this time, in some settings
	default:
		return 65 * time.Minute // lost pulls are settled
	}
}

var opNames = [...]string{
	"import before the first start", "pre-check", "pull", "create", "start the newest container", "run", "run honestly",
	"restore pod", "remove", "remove in the runtime", "untag in the runtime", "tag in the runtime",
	"import into the runtime", "push", "push a checkpoint", "change a Secret", "recreate a Secret", "revoke", "accept",
	"forget", "change the policy", "end the pod", "restart the kubelet", "restart", "kill", "kill and lose the store",
	"end the distrust", "restart the runtime", "begin or end an outage", "release a slow call", "cancel a slow call",
	"end a late call", "wait", "change signatures", "change files of access",
	"change the namespaces of the node's credentials", "change a service account", "pull for two pods at once",
}

func (o op) String() string {
	return fmt.Sprintf("%s: pod %s, name %s, other name %s, content %v, credential %d, how %d, n %d, gap %v",
		opNames[o.kind], slots[o.pod].who, modelNames[o.name], modelNames[o.other], o.content, o.cred, o.how, o.n, o.gap)
}

// checkpoint returns the checkpoint that bob pushes.
func (o op) checkpoint() checkpoint {
	c := checkpoint{base: modelNames[o.name], failing: o.n/3%4 == 0}
	if o.n/12%3 != 0 {
		c.given = modelNames[o.other]
	}
	if o.n/36%2 == 0 {
		c.reportedAs = bobApp
	}
	return c
}

// Relative frequency of each kind of operation.
var opWeights = [opKinds]int{
	opPrecheck: 180, opPull: 110, opCreate: 70, opStart: 60, opRun: 100, opHonest: 36, opRestorePod: 10, opRemove: 12,
	opDirectRemove: 12, opUntag: 5, opTag: 5, opImport: 12, opPush: 10, opCheckpoint: 20, opRotate: 14, opRecreate: 4,
	opRevoke: 14, opAccept: 6, opForget: 8, opPolicy: 6, opEndPod: 40, opNewSeen: 5, opRestart: 8, opKill: 8, opLose: 2,
	opTrust: 4, opRuntimeRestart: 5, opOutage: 14, opRelease: 40, opCancel: 8, opLate: 14, opWait: 14, opSign: 24,
	opAccess: 16, opNode: 10, opAccount: 16, opAtOnce: 20,
}

// Names and contents that are used more often make interactions between operations more likely.
var (
	nameWeights    = []int{30, 8, 14, 6, 10, 10, 5, 4, 8, 6, 3, 3, 2, 1}
	contentWeights = []int{0, 30, 8, 10, 6, 10, 8, 2, 1, 1}
	slotWeights    = []int{20, 20, 25, 25, 3, 3}
)

func weighted(r *rand.Rand, weights []int) int {
	sum := 0
	for _, w := range weights {
		sum += w
	}
	at := r.IntN(sum)
	for i, w := range weights {
		if at -= w; at < 0 {
			return i
		}
	}
	return 0
}

// randomOps returns the operations of a world.
func randomOps(r *rand.Rand, n int) []op {
	ops := make([]op, 0, n)
	for range r.IntN(4) {
		ops = append(ops, op{
			kind: opImportFirst, content: content(1 + r.IntN(contents)), name: uint8(weighted(r, nameWeights[:9])),
		})
	}
	for len(ops) < n {
		o := op{
			kind: opKind(weighted(r, opWeights[:])), pod: uint8(weighted(r, slotWeights)), name: uint8(weighted(r, nameWeights)),
			other: uint8(weighted(r, nameWeights)), content: content(weighted(r, contentWeights)),
			cred: credentialKind(weighted(r, []int{4, 16, 2, 3, 4, 2, 7, 2, 2})),
			n:    uint8(r.IntN(256)), gap: time.Millisecond,
		}
		if r.IntN(8) == 0 {
			o.how = 1 + how(r.IntN(int(hows)-1))
		}
		if r.IntN(10) == 0 {
			o.gap = 1100 * time.Millisecond
		}
		if o.kind == opOutage && r.IntN(3) > 0 {
			o.n = 1 // the registries are reachable most of the time
		}
		ops = append(ops, o)
	}
	return ops
}

// modelPolicies are the verification policies that a world may have.
var modelPolicies = []string{
	"NeverVerifyPreloadedImages", "NeverVerifyAllowlistedImages", "AlwaysVerify", "NeverVerify",
}

// A setting is the initial configuration of a world.
type setting struct {
	kind       runtimeKind
	policy     string
	verify     bool // untrackedImages: Verify
	podSource  bool
	exempt     bool
	skips      bool // the kubelet sends no pre-check for Always
	fallback   bool
	validity   time.Duration
	grace      time.Duration
	pullPolicy [4]string // of each tenant's pods
	signatures bool      // a policy requires them
}

func randomSetting(r *rand.Rand) setting {
	one := func(of int) bool { return r.IntN(of) == 0 }
	s := setting{
		kind: runtimeKind{
			pullsBase: one(4), givesNames: !one(4), digests: one(4), noEcho: one(5), noImageID: one(5), noUserImage: one(8),
		},
		policy: modelPolicies[weighted(r, []int{10, 5, 3, 1})], verify: one(6), podSource: one(2), exempt: one(2),
		skips: !one(3), fallback: one(2),
	}
	if one(5) {
		s.validity, s.grace = 5*time.Minute, 5*time.Minute
	}
	for i := range s.pullPolicy {
		s.pullPolicy[i] = []string{"IfNotPresent", "IfNotPresent", "Always", "Never"}[r.IntN(4)]
	}
	s.signatures = one(3)
	return s
}
