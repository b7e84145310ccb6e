"""Lists what words of instructions mean, in English, German, French, Spanish and Chinese: objects, denials, verbs.

Case and accents do not matter; an underscore joins the words of a phrase.
"""

from __future__ import annotations

CLASSES: dict[str, str] = {
    "bottle": "bottle bottles flask flasks Flasche Flaschen bouteille bouteilles botella botellas 瓶子 瓶",
    "ball": "ball balls football footballs Bälle Bällen Kugel Kugeln ballon ballons balle balles pelota pelotas balón "
    "balones bola bolas 球",
    "box": "box boxes Kiste Kisten Boxen Schachtel Schachteln boîte boîtes caisse caisses caja cajas 箱子 盒子 箱 盒",
    "cone": "cone cones Kegel Kegels Kegeln Leitkegel cône cônes cono conos 锥桶 路锥 锥筒 圆锥 锥",
    "chair": "chair chairs Stuhl Stuhls Stuhle Stühle Stühlen chaise chaises silla sillas 椅子 椅",
    "plant": "plant plants houseplant houseplants Pflanze Pflanzen Topfpflanze Zimmerpflanze plante plantes planta "
    "plantas 植物 盆栽",
    "mug": "mug mugs cup cups Tasse Tassen Becher Bechers Bechern tasse tasses taza tazas 杯子 马克杯 杯",
    "bin": "bin bins dustbin dustbins trash_can trash_cans garbage_can garbage_cans wastebasket Mülleimer Mülleimers "
    "Mülleimern Abfalleimer Papierkorb Mülltonne poubelle poubelles papelera papeleras cubo_de_basura basurero 垃圾桶 "
    "垃圾箱",
    "lamp": "lamp lamps Lampe Lampen lampe lampes lámpara lámparas 灯 台灯 落地灯 燈",
}
"""Class of `vlm_nav_simulation.objects` -> its names. A stool, a bucket or a light has another word on purpose."""

COLOURS: dict[str, str] = {
    "red": "red rot~ rouge rouges rojo roja rojos rojas 红色 红 紅色 紅",
    "green": "green grün~ gruen~ vert verte verts vertes verde verdes 绿色 绿 綠色 綠",
    "blue": "blue blau~ bleu bleue bleus bleues azul azules 蓝色 蓝 藍色 藍",
    "yellow": "yellow gelb~ jaune jaunes amarillo amarilla amarillos amarillas 黄色 黄 黃色 黃",
    "orange": "orange~ orangefarben~ oranges naranja naranjas anaranjado anaranjada 橙色 橙 橘色 橘",
    "purple": "purple violet violett~ lila~ purpurn~ violette violets violettes morado morada morados moradas violeta "
    "紫色 紫",
    "white": "white weiß~ blanc blanche blancs blanches blanco blanca blancos blancas 白色 白",
    "black": "black schwarz~ noir noire noirs noires negro negra negros negras 黑色 黑",
    "silver": "silver silvery silbern~ silber~ silberfarben~ argenté argentée argentés argentées plateado plateada "
    "plateados plateadas 银色 银 銀色 銀",
}
"""Colour of `vlm_nav_simulation.objects` -> its names; a German stem before ~ stands with all its endings.

Grey is not silver: the simulator's silver is a streaked metal, neither a grey nor a white.
"""

OTHER_COLOURS = """
grey gray brown pink gold golden beige cyan turquoise magenta teal maroon bronze copper transparent
grau~ braun~ rosa goldene goldenen goldener goldenes gris grise brun brune marron rose dore doree dorado dorada
灰色 灰 棕色 棕 粉色 粉红色 金色 金
"""
"""Colours that no object has: naming one is a request that cannot be met, never an adjective that may be dropped."""

VERBS = """
approach bring come drive enter explore fetch find finding follow get give go going head hunt lead leave locate look
looking move navigate reach return run search searching see seek show stand stop take travel turn wait walk want need
where wheres help
finde finden find such suche suchen geh gehe gehen lauf laufe fahr fahre komm bring bringe zeig zeige will brauche
mochte wo hol hole nimm
trouve trouver trouvez cherche chercher cherchez va vas aller allez amene montre veux voudrais conduis
busca buscar encuentra encontrar ve ir camina lleva llevame muestra muestrame quiero necesito donde dirigete
找 找到 去 到 走 看 看到 带 带我 寻找 前往 需要 想要 要 拿 给我
"""
"""Verbs, and words of questions, that begin a clause."""

DENIALS = """
without except excepting excluding instead_of rather_than other_than apart_from aside_from away_from far_from
distance_from clear_of out_of
ohne ausser statt anstatt weg_von weg_vom fern_von sans sauf hormis excepte loin_de loin_du a_part au_lieu_de plutot_que
sin salvo menos excepto lejos_de aparte_de en_vez_de en_lugar_de 除了 避开 远离
wrong forbidden prohibited banned nope nah
verboten nein in_ruhe interdit non prohibido 除外 不对
not dont donot doesnt didnt isnt arent wasnt wont wouldnt shouldnt couldnt mustnt cannot cant neednt never no none
neither nor nothing avoid avoiding ignore ignoring skip skipping exclude forget
forgetting refuse reject refrain cancel abort quit hate dislike flee escape evade dodge shun bypass omit leave beware
unless against minus hide nt aint havent hasnt hadnt
keep_away stay_away go_away move_away walk_away run_away anything_else_than keep_off stay_off hands_off back_off
stop_looking stop_searching stop_finding stop_going stop_walking stop_moving stop_running stop_approaching
stop_following stop_heading stop_navigating
nicht nichts kein keine keinen keinem keiner keines nie niemals weder vermeide meide
vermeiden meiden ignoriere umgehe vergiss hor_auf hoer_auf
ne n pas jamais aucun aucune rien ni evite evitez eviter ignore oublie arrete_de
nunca jamas tampoco ningun ninguna ninguno nada evita evitar ignora olvida
alejate deja_de para_de
不 不要 不是 不想 不用 不能 不可 不许 不得 别 別 没 沒 没有 勿 莫 非 无 避免 除 忽略 停止 拒绝 取消
but sondern mais sino pero aber 而是 但是 但
"""
"""Words that deny, exclude or correct something."""

IDIOMS = """
if_you_dont_mind if_you_do_not_mind wouldnt_mind dont_mind why_dont_you why_dont_we cant_you couldnt_you wont_you
wouldnt_you isnt_there dont_worry do_not_worry no_problem no_rush no_hurry nothing_but nothing_else_but none_but
nothing_except nothing_other_than no_other_than out_of_the_way_to i_cannot_find i_cant_find i_cannot_see i_cant_see
i_can_not_find i_can_not_see i_could_not_find i_couldnt_find i_dont_know_where i_do_not_know_where dont_forget_to
do_not_forget_to how_far ich_bin bin_ich
能不能 可不可以 是不是 有没有 行不行 好不好 不好意思 找不到 看不到 看不见 不知道 明白
"""
"""Phrases with a word of denial that deny nothing."""

RELATIONS = """
left_of to_the_left_of on_the_left_of right_of to_the_right_of on_the_right_of next_to beside near nearby close_to
closest_to nearest_to by adjacent_to behind in_front_of before on_top_of on under below above inside between beyond
opposite
links_von links_vom links_neben rechts_von rechts_vom rechts_neben neben bei hinter vor auf unter uber zwischen
a_gauche_de a_gauche_du a_droite_de a_droite_du a_cote_de a_cote_du pres_de pres_du derriere devant sur sous dans entre
a_la_izquierda_de a_la_izquierda_del a_la_derecha_de a_la_derecha_del junto_a junto_al al_lado_de al_lado_del cerca_de
cerca_del detras_de detras_del delante_de delante_del frente_a frente_al sobre debajo_de dentro_de encima_de
左边 右边 左侧 右侧 旁边的 后面 前面 上面 下面 里面
"""
"""Words for where an object is by another one."""

HEADS = """
one ones thing things object objects item items something anything it
etwas ding dinge gegenstand objekt eine einen eines
chose choses objet objets celui celle quelque
cosa cosas algo objeto objetos
东西 物体
"""
"""Words that stand for an object without naming it."""

LINKS = """
to for a an the this that these those which who is are its in of with colour color coloured colored painted very
zu zum zur nach der die das den dem des ein einem einer ist sind welche welcher welches mit farbe
vers au aux le la les l un une des du de d qui est sont en couleur
hacia al el los las lo una unos unas que es esta son del color
的 是 一 个 那 这 那个 这个 一个 只 把 张 盏 颗 株 棵 台
"""
"""Words that may stand between an object and its colour: 'the chair that is red'."""

POLITE = "please then now just instead rather so i you we lets me bitte ich du dann je moi tu por favor yo 请 我 你 就"

COMMON = """
at from into onto over up down out there here somewhere anywhere around about as close closer possible can could
would will shall should may might must do does did have has had be been being am was were if when while because since
until after soon quickly quick fast slowly carefully immediately again also too only either both all any some every
each another other others same mine my your our their his her him us them they he she what whats how why hey hi hello
ok okay yes mate buddy friend sir thanks thank much kindly kind nice good great asap today tonight ahead straight right
left back forward front standing lying sitting placed located named called like know think try trying let make sure keep
way more most really id im ive youre thats theres got lot ever even
alles alle allen allem mal doch jetzt dort da hier an am im dich mir mich uns kannst konntest wurdest hatte gerne
gern danke dir sehen nahe nah so wie moglich hin ran zwar auch nur noch schnell mein meine meinen meiner dein deine
deinen deiner sein seine klein kleine kleinen kleiner kleines grosse grossen grosser grosses
s il tout toute tous toutes te vous plait merci jusqu jusque y peux peut pouvez voir toi chez pour plus avec ici nous
j ai besoin puis petit petite grand grande c t m qu
gracias todo toda todos todas hasta puedes ver me ahora aqui alli ahi para con pequeno pequena tu mi
在 在哪里 在哪 哪里 哪儿 哪 那里 那边 这里 吗 呢 吧 啊 了 过 过去 旁边 帮 帮我 能 可以 麻烦 谢谢 里 上 下 一下 到 它 他
她 有 快 快点 想 从 往 向
"""
"""Frequent words that name nothing and deny nothing; one may stand behind an object's name."""

STOPS = """
stop halt freeze hold whoa abort cancel quit stop_it stop_there stop_here stop_moving stop_walking stop_the_robot
hold_it hold_still stand_still stay stay_there stay_here stay_put dont_move do_not_move emergency_stop
stopp stoppe anhalten halte_an stehen_bleiben stehenbleiben bleib_stehen bleiben_sie_stehen steh_still nothalt abbrechen
nicht_bewegen beweg_dich_nicht
arrete arretez arrete_toi arretez_vous arret arrete_de_bouger ne_bouge_pas ne_bouge_plus ne_bougez_pas ne_bougez_plus
alto para parate pare detente detengase no_te_muevas no_se_mueva quieto
停 停_下 停_止 停_下_来 停_住 站_住 别_动 不_要_动 取_消
"""
"""Everything that people say to stop a robot; it denies no object and starts no search."""

INSISTENT = """
immediately at once right away sofort jetzt mal doch ya ahora s il te vous plait merci thanks danke gracias robot dog
马 上
"""
"""Words that may stand with an order to stop, as those of POLITE may."""

LOOK_ALIKES = """
call tall fall mall wall hall bell bill bull bald bale bail gall lamb lump damp camp ramp limp clamp lap amp gone done
bone tone zone code core cope come came cane care case hair hail chain choir chairman plan plane plank planet plans
plate slant battle cattle brittle orator range people yell fellow mellow bellow hollow read bread ready greed greet
greek queen write quite while whine slack block blank back glue clue true bluff blow blur con sliver solver
mottle bolt hot dot pot bot mot tot note nor now nod net nut knot donut lever fever licht
"""
"""Words that are one letter from a name or from a denial, and are neither."""

MISSPELT_DENIALS = "not dont never avoid without except cannot ignore nicht keine kein ohne jamais nunca"
"""Denials that are recognised with one wrong letter."""

JOINTS = "and und et y e 和 跟 以及 与 or oder ou o u 或 或者 还是"
"""Words that join what is asked for with something else that is."""
