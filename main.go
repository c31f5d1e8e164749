/*
Copyright The cnat Authors.

Licensed under the Apache License, Version 2.0 (the "License");
you may not use this file except in compliance with the License.
You may obtain a copy of the License at

    http://www.apache.org/licenses/LICENSE-2.0

Unless required by applicable law or agreed to in writing, software
distributed under the License is distributed on an "AS IS" BASIS,
WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
See the License for the specific language governing permissions and
limitations under the License.
*/

// Command cnat-controller runs the command of each At once, at its time.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"os"
	goruntime "runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
	_ "time/tzdata" // The zones of spec.timeZone, for machines and images without them.
	"unicode"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	kubeinformers "k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/record"
	"k8s.io/component-base/logs"
	logsapi "k8s.io/component-base/logs/api/v1"
	_ "k8s.io/component-base/logs/json/register" // -logging-format=json
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat"
	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/cronat"
	"programming-kubernetes.info/cnat-controller/pkg/freeze/freezecache"
	clientset "programming-kubernetes.info/cnat-controller/pkg/generated/clientset/versioned"
	cnatscheme "programming-kubernetes.info/cnat-controller/pkg/generated/clientset/versioned/scheme"
	cnatinformers "programming-kubernetes.info/cnat-controller/pkg/generated/informers/externalversions"
	"programming-kubernetes.info/cnat-controller/pkg/inventory"
	"programming-kubernetes.info/cnat-controller/pkg/machinery/connect"
	"programming-kubernetes.info/cnat-controller/pkg/machinery/endpoints"
	"programming-kubernetes.info/cnat-controller/pkg/machinery/events"
	"programming-kubernetes.info/cnat-controller/pkg/machinery/leader"
	"programming-kubernetes.info/cnat-controller/pkg/machinery/safelog"
	"programming-kubernetes.info/cnat-controller/pkg/metrics"
	"programming-kubernetes.info/cnat-controller/pkg/plan"
	"programming-kubernetes.info/cnat-controller/pkg/preflight"
	"programming-kubernetes.info/cnat-controller/pkg/restartannotation"
	"programming-kubernetes.info/cnat-controller/pkg/uninstall"
	"programming-kubernetes.info/cnat-controller/pkg/version"
	"programming-kubernetes.info/cnat-controller/signals"
)

// listPeriod is the interval at which the controller tries to list what it works on until it can.
const listPeriod = 2 * time.Second

// cronWorkers is how many CronAts are worked on for each worker on Ats. Of many that are due at
// one instant, the Ats are created quickly, so that what follows a start waits behind the starts.
const cronWorkers = 4

// annotationWorkers is the number of annotated workloads that are worked on at the same time.
const annotationWorkers = 2

// gcPercent is how much the heap may grow between two garbage collections, unless GOGC
// says otherwise: the caches of very many Ats hardly change, so that Go's default of 100
// would double their memory for nothing.
const gcPercent = 20

type options struct {
	kubeconfig   string
	master       string
	namespace    string
	workers      int
	defaults     plan.Defaults
	requests     string // those of defaults, to be parsed
	limits       string
	preflightQPS float64
	// rehearsals and namespaceRehearsals limit the rehearsals at the same time.
	rehearsals, namespaceRehearsals int

	restartAnnotations bool
	holdPermissions    bool

	leaderElect          bool
	leaderElectNamespace string
	leaderElectIdentity  string

	metricsAddress    string
	metricsSecure     bool
	metricsNamespaces int
	certFile          string
	keyFile           string
	healthAddress     string

	logging *logsapi.LoggingConfiguration
	version bool

	given map[string]bool // the flags that were passed
}

func (o *options) addFlags(flags *flag.FlagSet) {
	flags.StringVar(&o.kubeconfig, "kubeconfig", "", "The path of a kubeconfig file. By default the controller uses $KUBECONFIG, then ~/.kube/config, then the service account of its Pod.")
	flags.StringVar(&o.master, "master", "", "The URL of the API server. It overrides that of the kubeconfig.")
	flags.StringVar(&o.namespace, "namespace", metav1.NamespaceAll, "The namespace whose Ats the controller runs. By default it runs those of all namespaces.")
	flags.IntVar(&o.workers, "workers", 16, "The number of Ats of one namespace that are synced at the same time. For CronAts it is four times as many.")
	flags.StringVar(&o.defaults.Image, "default-image", "busybox:1.37.0", "The image in which commands without a template run. It needs /bin/sh.")
	flags.StringVar(&o.requests, "default-requests", "", "The resource requests of the Pods of Ats that have no template, such as cpu=10m,memory=16Mi. By default they have none, or those of the namespace's LimitRange.")
	flags.StringVar(&o.limits, "default-limits", "", "The resource limits of the Pods of Ats that have no template, such as memory=64Mi. By default they have none, or those of the namespace's LimitRange.")
	flags.BoolVar(&o.leaderElect, "leader-elect", false, "Work only while holding the lease "+controllerName+", so that several controllers can run and one of them works.")
	flags.StringVar(&o.leaderElectNamespace, "leader-elect-resource-namespace", "", "The namespace of the lease. By default it is that of the kubeconfig or of the service account.")
	flags.StringVar(&o.leaderElectIdentity, "leader-elect-identity", "", "The name of this controller in the lease, such as the name of its Pod. After a restart with the same name it gets the lease back at once. Two running controllers must not share a name. By default each process has a new name.")
	flags.Float64Var(&o.preflightQPS, "preflight-qps", 5, "The maximum number of dry-runs per second for preflights, which find out before an At is due whether its Pod would be refused. They come with at most ten times as many reads. 0 turns preflights and rehearsals off.")
	flags.IntVar(&o.rehearsals, "rehearsals", 10, "The maximum number of rehearsals (spec.rehearse) at the same time. 0 turns rehearsals off.")
	flags.IntVar(&o.namespaceRehearsals, "rehearsals-per-namespace", 2, "The maximum number of rehearsals of one namespace at the same time. Half of -rehearsals is for the first one of each namespace.")
	flags.BoolVar(&o.restartAnnotations, "restart-annotations", false, "Restart workloads that have the annotation "+v1alpha1.AnnotationRestartSchedule+". This needs the permissions of artifacts/restarts and artifacts/restarts/annotations.")
	flags.BoolVar(&o.holdPermissions, "hold-permissions", false, "Keep the controller's service account, roles and role bindings, by a finalizer, until the controller has removed the finalizers of all Pods. It is for the manifests, whose names and permissions it needs.")
	flags.StringVar(&o.metricsAddress, "metrics-bind-address", "127.0.0.1:9383", "The host:port of /metrics, over HTTP unless -metrics-secure is set. If it is empty, metrics are not served. If the default address is in use, the controller logs that and works without it.")
	flags.BoolVar(&o.metricsSecure, "metrics-secure", false, "Serve /metrics over HTTPS, and only to users who may get metrics."+cnat.GroupName+" in the controller's namespace.")
	flags.IntVar(&o.metricsNamespaces, "metrics-namespaces", 100, "The number of namespaces that the metrics count by name. The others are counted together, as _other.")
	flags.StringVar(&o.certFile, "tls-cert-file", "", "The PEM file of the certificate for -metrics-secure, which is read again for each connection. As long as the file does not exist, and by default, the certificate is self-signed.")
	flags.StringVar(&o.keyFile, "tls-private-key-file", "", "The PEM file of the key of -tls-cert-file.")
	flags.StringVar(&o.healthAddress, "health-probe-bind-address", "127.0.0.1:9384", "The host:port of /healthz and /readyz. If it is empty, they are not served. If the default address is in use, the controller logs that and works without it.")
	flags.StringVar(&o.logging.Format, "logging-format", o.logging.Format, "The format of the log: text or json.")
	flags.Var(logsapi.VerbosityLevelPflag(&o.logging.Verbosity), "v", "The verbosity of the log: 2 logs each change of an At, 4 each sync, 8 whole requests with the commands in them.")
	flags.Var(logsapi.VModuleConfigurationPflag(&o.logging.VModule), "vmodule", "The verbosity of single files, as pattern=N,... It works only with -logging-format=text.")
	flags.BoolVar(&o.version, "version", false, "Print the version and exit.")
}

func (o *options) validate(args []string) error {
	switch {
	case len(args) > 0:
		return fmt.Errorf("unexpected argument %q: all options are flags, see -help", args[0])
	case o.workers < 1:
		return fmt.Errorf("-workers is %d: it must be at least 1", o.workers)
	case o.defaults.Image == "" || strings.ContainsFunc(o.defaults.Image, unicode.IsSpace):
		return fmt.Errorf("-default-image is %q: name an image that has /bin/sh", o.defaults.Image)
	case o.preflightQPS < 0:
		return fmt.Errorf("-preflight-qps is %v: it must not be negative; 0 turns preflights off", o.preflightQPS)
	case o.rehearsals < 0:
		return fmt.Errorf("-rehearsals is %d: it must not be negative; 0 turns rehearsals off", o.rehearsals)
	case o.namespaceRehearsals < 1:
		return fmt.Errorf("-rehearsals-per-namespace is %d: it must be at least 1; to turn rehearsals off, set -rehearsals=0", o.namespaceRehearsals)
	case o.logging.Format != "text" && o.logging.Format != "json":
		return fmt.Errorf("-logging-format is %q: it must be text or json", o.logging.Format)
	case o.metricsNamespaces < 0:
		return fmt.Errorf("-metrics-namespaces is %d: it must not be negative; 0 counts all namespaces together", o.metricsNamespaces)
	case (o.certFile == "") != (o.keyFile == ""):
		return errors.New("-tls-cert-file and -tls-private-key-file belong together: set both")
	case o.certFile != "" && !o.metricsSecure:
		return errors.New("-tls-cert-file needs -metrics-secure: set both")
	}
	return o.parseResources()
}

// parseResources sets the default requests and limits.
func (o *options) parseResources() error {
	var err error
	if o.defaults.Resources.Requests, err = parseResourceList(o.requests); err != nil {
		return fmt.Errorf("-default-requests is %q: %w", o.requests, err)
	}
	if o.defaults.Resources.Limits, err = parseResourceList(o.limits); err != nil {
		return fmt.Errorf("-default-limits is %q: %w", o.limits, err)
	}
	for name, request := range o.defaults.Resources.Requests {
		if limit, ok := o.defaults.Resources.Limits[name]; ok && request.Cmp(limit) > 0 {
			return fmt.Errorf("-default-requests has more %s than -default-limits: the API server would refuse each Pod", name)
		}
	}
	return nil
}

// parseResourceList reads a list such as cpu=10m,memory=16Mi.
func parseResourceList(text string) (corev1.ResourceList, error) {
	if text == "" {
		return nil, nil
	}
	list := corev1.ResourceList{}
	for entry := range strings.SplitSeq(text, ",") {
		name, amount, _ := strings.Cut(entry, "=")
		quantity, err := resource.ParseQuantity(amount)
		if err != nil || quantity.Sign() < 0 || !slices.Contains([]string{"cpu", "memory", "ephemeral-storage"}, name) {
			return nil, fmt.Errorf("%q is not a quantity of cpu, memory or ephemeral-storage; write for example cpu=10m,memory=16Mi", entry)
		}
		list[corev1.ResourceName(name)] = quantity
	}
	return list, nil
}

func main() {
	o := options{logging: logsapi.NewLoggingConfiguration(), given: map[string]bool{}}
	o.addFlags(flag.CommandLine)
	flag.Parse()
	flag.Visit(func(f *flag.Flag) { o.given[f.Name] = true })

	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	err := o.validate(flag.Args())
	if err == nil {
		err = logsapi.ValidateAndApply(o.logging, nil)
	}
	if err == nil {
		safelog.Install()
		err = run(signals.SetupSignalHandler(), &o)
	}
	logs.FlushLogs()
	if err != nil {
		fmt.Fprintln(os.Stderr, "cnat-controller:", err)
		os.Exit(1)
	}
}

// run runs the controller until ctx is done. Its errors are for the person who started it
// and say what to do.
func run(ctx context.Context, o *options) error {
	if o.version {
		fmt.Fprintf(os.Stdout, "cnat-controller %s (%s, %s)\n", version.Version, version.Revision(), goruntime.Version())
		return nil
	}
	config, namespace, err := loadConfig(o)
	if err != nil {
		return err
	}
	if !o.leaderElect {
		// A person who starts it by hand wants to know at once. In a cluster, an error would
		// make the kubelet restart it with a growing back-off.
		client, err := clientset.NewForConfig(config)
		if err != nil {
			return err
		}
		err = listAts(ctx, client, o.namespace)
		if err = connect.Explain(err, config.Host); err != nil || ctx.Err() != nil {
			return err
		}
	}
	o.leaderElectNamespace = cmp.Or(o.leaderElectNamespace, namespace)
	p, err := newProgram(ctx, o, config, clock.RealClock{})
	if err != nil {
		return err
	}
	p.ownNamespace = namespace
	// The endpoints are served until the last step is done.
	serveCtx, stopServing := context.WithCancel(context.WithoutCancel(ctx))
	defer stopServing()
	metrics.Register()
	inventory.Register(p.objects, o.metricsNamespaces)
	if err := p.serve(serveCtx); err != nil {
		return err
	}
	return p.run(ctx)
}

// program is the wiring of the clients, informers and controllers.
type program struct {
	*options
	// besideConfig is for requests that are not repeated while the API server is unreachable: those
	// for the lease and for who may get the metrics.
	besideConfig *rest.Config
	// ownNamespace is the one in which users need permission to read the metrics.
	ownNamespace   string
	kubeClient     kubernetes.Interface
	cnatClient     clientset.Interface
	metadataClient metadata.Interface
	informers      []cache.SharedIndexInformer // of Pods, Ats and CronAts
	recorder       record.EventRecorder
	stopEvents     func()
	lease          leaderelection.HealthzAdaptor
	objects        inventory.Objects

	controller     *Controller
	cronController *cronat.Controller
	annotations    *restartannotation.Controller // nil without the flag
	freezes        *freezecache.Cache
}

func newProgram(ctx context.Context, o *options, config *rest.Config, wallClock clock.WithTicker) (*program, error) {
	p := &program{options: o, besideConfig: rest.CopyConfig(config)}
	config.Wrap(connect.Patient)
	var err error
	if p.cnatClient, err = clientset.NewForConfig(config); err != nil {
		return nil, fmt.Errorf("create the client for Ats: %w", err)
	}
	// Built-in resources can be read as protobuf, which costs less. Custom resources cannot.
	protobuf := rest.CopyConfig(config)
	protobuf.ContentType = runtime.ContentTypeProtobuf
	protobuf.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	if p.kubeClient, err = kubernetes.NewForConfig(protobuf); err != nil {
		return nil, fmt.Errorf("create the client for Pods: %w", err)
	}
	if p.metadataClient, err = metadata.NewForConfig(config); err != nil {
		return nil, fmt.Errorf("create the client for metadata: %w", err)
	}

	pods := kubeinformers.NewSharedInformerFactoryWithOptions(p.kubeClient, 0,
		kubeinformers.WithNamespace(o.namespace),
		kubeinformers.WithTweakListOptions(func(options *metav1.ListOptions) {
			options.LabelSelector = v1alpha1.LabelAtUID
		})).Core().V1().Pods()
	cnatInformers := cnatinformers.NewSharedInformerFactoryWithOptions(p.cnatClient, 0,
		cnatinformers.WithNamespace(o.namespace), cnatinformers.WithTweakListOptions(connect.Current)).Cnat().V1alpha1()
	ats, cronAts := cnatInformers.Ats(), cnatInformers.CronAts()
	p.informers = []cache.SharedIndexInformer{pods.Informer(), ats.Informer(), cronAts.Informer()}
	p.recorder, p.stopEvents = events.NewRecorder(ctx, cnatscheme.Scheme, controllerName, p.kubeClient.CoreV1())
	var preflights *preflight.Clients
	if o.preflightQPS > 0 {
		preflights = &preflight.Clients{
			Cnat: p.cnatClient, Kube: p.kubeClient, QPS: o.preflightQPS,
			Rehearsals: o.rehearsals, NamespaceRehearsals: o.namespaceRehearsals, Namespace: o.namespace,
		}
	}
	p.freezes = freezecache.New(p.cnatClient, p.metadataClient, o.namespace, o.leaderElectNamespace, wallClock)
	p.controller, err = NewController(ctx, p.kubeClient, p.cnatClient,
		pods, kubeinformers.NewSharedInformerFactory(p.kubeClient, 0).Core().V1().Nodes(), ats, cronAts, p.freezes,
		preflights, p.recorder, o.defaults, wallClock)
	if err != nil {
		return nil, err
	}
	p.cronController, err = cronat.NewController(ctx, p.cnatClient, cronAts, ats, p.freezes, p.controller.preflight.CronAts(cronAts.Lister()), p.recorder, wallClock)
	if err != nil {
		return nil, err
	}
	p.objects = inventory.Objects{
		Ats:     ats.Lister(),
		CronAts: cronAts.Lister(),
		// Only the leader counts them: otherwise their sum over all replicas would be wrong.
		Working: func() bool { return !p.controller.queue.Standby.Load() },
	}
	if o.restartAnnotations {
		p.annotations, err = restartannotation.NewController(p.cnatClient, p.metadataClient, cronAts, o.namespace, p.recorder, wallClock)
		if err != nil {
			return nil, err
		}
		p.objects.BlockedAnnotations = p.annotations.Blocked
	}
	return p, nil
}

// run runs the controllers until ctx is done, or the lease is lost.
func (p *program) run(ctx context.Context) error {
	ctx, end := context.WithCancel(ctx)
	defer end()
	defer p.stopEvents()
	klog.FromContext(ctx).Info("Looking for Ats", "host", p.besideConfig.Host, "namespace", cmp.Or(p.namespace, "all"))
	var held *uninstall.Permissions
	if p.holdPermissions {
		var err error
		held, err = uninstall.Find(ctx, p.besideConfig, controllerName, p.namespace)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			return fmt.Errorf("find the permissions for -hold-permissions: %w", err)
		}
	}
	// The informers run before the election, so that the caches of a standby are filled. A controller
	// that is refused holds its permissions all the same, and releases them when it is uninstalled.
	go p.startInformers(ctx)
	work := func(ctx context.Context) {
		uninstalled := held.Hold(ctx, func(ctx context.Context) {
			var wg sync.WaitGroup
			wg.Go(func() { p.cronController.Run(ctx, cronWorkers*p.workers) })
			if p.annotations != nil {
				wg.Go(func() { p.annotations.Run(ctx, annotationWorkers) })
			}
			p.controller.Run(ctx, p.workers)
			wg.Wait()
		}, func(ctx context.Context) error {
			return uninstall.Release(ctx, p.metadataClient, p.controller.steps, p.cronController.Steps, p.namespace)
		})
		if uninstalled {
			end()
		}
	}
	if !p.leaderElect {
		work(ctx)
		return nil
	}
	return leader.Run(ctx, p.besideConfig, p.leaderElectNamespace, controllerName, p.leaderElectIdentity, &p.lease, work)
}

// startInformers starts the informers once Ats can be listed. A cluster may have the CRD of At only, or
// permissions from before CronAt: so nothing but CronAts waits for these.
func (p *program) startInformers(ctx context.Context) {
	list := func(ctx context.Context) error { return listAts(ctx, p.cnatClient, p.namespace) }
	err := connect.Until(ctx, listPeriod, list, func(err error) {
		klog.FromContext(ctx).Info("Ats cannot be listed, and do not run until they can: apply artifacts/examples/cnat-crd.yaml and the permissions that come with it", "answer", err)
	})
	if err != nil {
		return
	}
	for _, informer := range p.informers {
		go informer.RunWithContext(ctx)
	}
	p.freezes.Run(ctx)
}

// serve serves health and metrics until ctx is done.
func (p *program) serve(ctx context.Context) error {
	if p.healthAddress != "" {
		mux := http.NewServeMux()
		mux.Handle("GET /healthz", endpoints.Check(p.lease.Check))
		mux.Handle("GET /readyz", endpoints.Check(func(*http.Request) error {
			if !p.controller.HasSynced() {
				return errors.New("the caches are not filled yet: see the log")
			}
			return nil
		}))
		_, err := endpoints.Serve(ctx, "health", p.healthAddress, nil, mux)
		if err := p.serveError(ctx, "health", "health-probe-bind-address", err); err != nil {
			return err
		}
	}
	if p.metricsAddress == "" {
		return nil
	}
	handler := legacyregistry.Handler()
	var certificate endpoints.Certificate
	if p.metricsSecure {
		client, err := kubernetes.NewForConfig(p.besideConfig)
		if err != nil {
			return fmt.Errorf("create the client for -metrics-secure: %w", err)
		}
		handler = endpoints.Authorize(client, authorizationv1.ResourceAttributes{
			Namespace: p.ownNamespace, Verb: "get", Group: cnat.GroupName, Resource: "metrics",
		}, handler)
		if certificate, err = endpoints.SelfSigned(); err != nil {
			return fmt.Errorf("create a certificate for -metrics-secure: %w", err)
		}
		if p.certFile != "" {
			if _, err := os.Stat(p.certFile); err != nil {
				klog.FromContext(ctx).Info("The certificate of the metrics is self-signed as long as -tls-cert-file does not exist", "error", err)
			}
			certificate = endpoints.CertificateFromFiles(p.certFile, p.keyFile, certificate)
		}
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", handler)
	_, err := endpoints.Serve(ctx, "metrics", p.metricsAddress, certificate, mux)
	return p.serveError(ctx, "metrics", "metrics-bind-address", err)
}

// serveError returns the error of serving at the address that a flag sets. If the default
// address is taken, such as by another controller on the same machine, that is only a
// warning.
func (o *options) serveError(ctx context.Context, what, flagName string, err error) error {
	if errors.Is(err, syscall.EADDRINUSE) && !o.given[flagName] {
		klog.FromContext(ctx).Info("The default address is taken: not serving "+what+"; to serve it, set -"+flagName, "error", err)
		return nil
	}
	if err != nil {
		return fmt.Errorf("serve %s: %w; see -%s", what, err, flagName)
	}
	return nil
}

// loadConfig returns the configuration of all clients, and the default namespace.
func loadConfig(o *options) (*rest.Config, string, error) {
	config, namespace, err := connect.Config(o.kubeconfig, o.master)
	if err != nil {
		return nil, "", err
	}
	config.UserAgent = controllerName + "/" + version.Version
	// Warnings may quote what a user wrote, and nobody could act on them in the log.
	config.WarningHandlerWithContext = rest.NoWarnings{}
	config.Wrap(connect.Concise)
	// No limit: the API server has priority and fairness.
	config.QPS = -1
	return config, namespace, nil
}

// listAts tries whether Ats can be listed.
func listAts(ctx context.Context, client clientset.Interface, namespace string) error {
	_, err := client.CnatV1alpha1().Ats(namespace).List(ctx, metav1.ListOptions{Limit: 1})
	return err
}
